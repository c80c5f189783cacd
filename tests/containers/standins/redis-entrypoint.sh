#!/bin/sh
# As that of the official image: root gives the folder to redis and becomes redis; and no protected mode.
set -e
if [ "$(id -u)" = 0 ]; then
    chown -R redis /data
    exec setpriv --reuid redis --regid redis --clear-groups "$0" "$@"
fi
exec "$@" --protected-mode no
