"""A real gateway with a scripted worker behind it, and both clients, of which the tests see one surface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from inspect import isawaitable
from typing import Any

import pytest

from medusaq import AsyncClient, Client
from tests.cli.conftest import gateway, served, worker_env

__all__ = ["gateway", "served", "worker_env"]


class Awaited:
    """An AsyncClient whose methods are awaited, and whose iterators are read, one step at a time."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._made(url, options))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            result = getattr(self._client, name)(*values, **options)
            return self._runner.run(result) if isawaitable(result) else self._steps(result)

        return call

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def _steps(self, items: Any) -> Iterator[Any]:
        async def after() -> Any:
            return await anext(items, None)

        try:
            while (item := self._runner.run(after())) is not None:
                yield item
        finally:
            self._runner.run(items.aclose())

    @staticmethod
    async def _made(url: str, options: dict[str, Any]) -> AsyncClient:
        return AsyncClient(url, **options)


Make = Callable[..., Any]


@pytest.fixture(params=[Client, Awaited], ids=["blocking", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a client, and closes it."""
    made: list[Any] = []

    def start(url: str, **options: Any) -> Any:
        made.append(request.param(url, **options))
        return made[-1]

    yield start
    for client in made:
        client.close()


@pytest.fixture
def client(make: Make, gateway: str) -> Any:
    return make(gateway)
