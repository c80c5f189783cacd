FROM medusaq-check/standin-python:system
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
RUN ln -s python3 /usr/bin/python
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
CMD ["python3"]
