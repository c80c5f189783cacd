"""Health checks of the containers: `health.py gateway|worker|io|flower` ends with 0 when that service lives.

Every container runs one service, so its host name tells its own entries from those of its scaled twins.
"""

from __future__ import annotations

import signal
import socket
import sys
import urllib.request
from types import FrameType

LIMIT_S = 8  # of the whole check, below the timeout that Docker gives it: its own message is then seen
ANSWER_S = 4.0  # for which a service is waited for


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
    """Its Celery node answers a ping. Without a limit Celery would wait for further answers until the end."""
    from tasks.app import app

    node = f"io-*@{socket.gethostname()}"
    return bool(app.control.ping(timeout=ANSWER_S, pattern=node, matcher="glob", limit=1))


def flower() -> bool:
    """It answers HTTP; this page alone needs no password."""
    from tasks.base.settings import get_settings

    return _answers(get_settings().flower_port, "/healthcheck")


CHECKS = {check.__name__: check for check in (gateway, worker, io, flower)}


def _answers(port: int, path: str) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_S) as response:
        return bool(response.status == 200)


def _too_late(_signal: int, _frame: FrameType | None) -> None:
    # No Exception, which a client of Redis would take for a lost connection.
    sys.exit(f"no answer within {LIMIT_S} s")


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in CHECKS:
        sys.exit(f"usage: health.py {'|'.join(CHECKS)}")
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LIMIT_S)
    try:
        alive = CHECKS[sys.argv[1]]()
    except Exception as error:  # whatever is wrong, docker shows this line in `docker inspect`
        sys.exit(f"{type(error).__name__}: {error}")
    sys.exit(0 if alive else f"no living {sys.argv[1]} on {socket.gethostname()}")


if __name__ == "__main__":
    main()
