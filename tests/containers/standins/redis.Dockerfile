FROM medusaq-check/standin-redis:system
COPY redis-entrypoint.sh /usr/local/bin/
RUN chmod +x /usr/local/bin/redis-entrypoint.sh && mkdir /data && chown redis /data
VOLUME /data
WORKDIR /data
ENTRYPOINT ["redis-entrypoint.sh"]
CMD ["redis-server"]
