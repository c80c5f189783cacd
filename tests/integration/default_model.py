"""A gateway before a worker of the real engine with the default model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.support.workers import Workers, wait_until

LOADING_S = 120.0  # the engine measures this machine first, which may be busy


@contextmanager
def serving(settings: Settings, folder: Path, *, io: bool = False) -> Iterator[GatewayProcess]:
    """Once it is ready. io: with an io worker too."""
    with ExitStack() as stack:
        workers = Workers(folder)
        stack.callback(workers.close)
        worker = workers.model(settings, ready=False, engine="engine:load")
        if io:
            workers.io(settings)
        gateway = GatewayProcess(settings, folder)
        stack.callback(gateway.stop)
        wait_until(
            lambda: gateway.http.get("/readyz").json() == {"redis": True, "workers": 1, "io_worker": io},
            LOADING_S,
            lambda: worker.process.poll() is None,
            worker.text,
        )
        yield gateway
