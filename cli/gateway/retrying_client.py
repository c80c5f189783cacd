"""The client of long commands, which survives pauses and restarts of the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from cli.gateway.client import own_key
from medusaq.connection import AsyncConnection
from medusaq.requests import PATIENCE_S, Requests

WATCH_S = 1.0  # between two looks at a batch, unless it ends


class RetryingClient:
    """Requests of medusaq.requests, with the API key of the settings."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self._requests = Requests(url, patience_s)
        self._connection = AsyncConnection(url, own_key())

    @property
    def last_error(self) -> str | None:
        """Of the current retries, else None."""
        return self._requests.last_error

    async def close(self) -> None:
        await self._connection.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        wait_s: float = 0,
    ) -> Any:
        """wait_s: seconds of `Prefer: wait`."""
        flow = self._requests.json(method, path, wait_s=wait_s, headers=headers, json=json)
        return await self._connection.run(flow)

    async def upload(self, path: Path, key: str) -> Any:
        with path.open("rb") as content:
            return await self._connection.run(self._requests.upload(path.name, content, key))

    def lines(self, path: str) -> AsyncGenerator[bytes]:
        return self._connection.items(self._requests.lines(path))
