"""Health checks of the containers: `health.py gateway|worker|io|flower` ends with 0 when that service lives.

Every container runs one service, so its host name tells its own entries from those of its scaled twins.
"""

from __future__ import annotations

import socket
import sys
import urllib.request

TIMEOUT_S = 4.0  # below the timeout that docker-compose.yml gives the check


def gateway() -> bool:
    """It answers HTTP. /readyz would blame it for a missing Redis or worker, which no restart of it cures."""
    from tasks.base.settings import get_settings

    return _answers(get_settings().port, "/healthz")


def worker() -> bool:
    """Its entry in the registry, renewed at every heartbeat, has not run out."""
    from tasks.base.settings import get_settings
    from tasks.store.database import Database
    from tasks.store.workers import Registry

    settings = get_settings()
    database = Database.connect(settings)
    try:
        live = Registry(database, settings.worker_ttl_s).live()
    finally:
        database.close()
    return any(entry.host == socket.gethostname() for entry in live)


def io() -> bool:
    """Its Celery node answers a ping."""
    from tasks.app import app

    answers = app.control.ping(timeout=TIMEOUT_S) or []
    nodes = {name for answer in answers for name in answer}
    return any(name.startswith("io-") and name.endswith(f"@{socket.gethostname()}") for name in nodes)


def flower() -> bool:
    """It answers HTTP; this page alone needs no password."""
    from tasks.base.settings import get_settings

    return _answers(get_settings().flower_port, "/healthcheck")


CHECKS = {check.__name__: check for check in (gateway, worker, io, flower)}


def _answers(port: int, path: str) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S) as response:
        return bool(response.status == 200)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in CHECKS:
        sys.exit(f"usage: health.py {'|'.join(CHECKS)}")
    try:
        alive = CHECKS[sys.argv[1]]()
    except Exception as error:  # whatever is wrong, docker shows this line in `docker inspect`
        sys.exit(f"{type(error).__name__}: {error}")
    sys.exit(0 if alive else f"no living {sys.argv[1]} on {socket.gethostname()}")


if __name__ == "__main__":
    main()
