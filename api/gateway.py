"""What the routes share: the store, the publisher, the waiter and a short-lived view of the workers."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, Request

from api.waiting import Waiter
from tasks.publish import Publisher
from tasks.registry import Registry, WorkerInfo
from tasks.settings import Settings
from tasks.store import JobStore

WORKERS_AGE_S = 1.0  # a submission may be checked against workers seen this long ago


class Gateway:
    """One per application."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = JobStore(settings)
        self.publisher = Publisher.connect(settings)
        self.waiter = Waiter(settings, self.store)
        self._registry = Registry(self.store, settings.worker_ttl_s)
        self._seen: tuple[float, list[WorkerInfo]] = (float("-inf"), [])

    def workers(self, max_age_s: float = 0.0) -> list[WorkerInfo]:
        """The live workers; raises StoreUnavailable."""
        at, seen = self._seen
        if time.monotonic() - at > max_age_s:
            seen = self._registry.live()
            self._seen = (time.monotonic(), seen)
        return seen

    def close(self) -> None:
        self.publisher.close()
        self.store.close()


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
