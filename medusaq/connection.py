"""Connections to a gateway, which carry out the steps of flows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, TypeVar, cast

import httpx

from common.addresses import is_loopback
from medusaq.steps import Close, Flow, Give, Open, Read, Send, Sleep, Step, Stream, Walk

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0


class BlockingConnection:
    """Waits in the calling thread."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._http = httpx.Client(base_url=url, headers=headers, **_options(url))

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        """The value of a flow that gives no items."""
        walk = Walk(flow)
        while (step := walk.step()) is not None:
            with walk:
                walk.result = self._result(step)
        return walk.value

    def items(self, flow: Flow[None]) -> Generator[Any]:
        """What a flow gives."""
        walk = Walk(flow)
        while (step := walk.step()) is not None:
            with walk:
                if isinstance(step, Give):
                    yield from step.items
                else:
                    walk.result = self._result(step)

    def _result(self, step: Step) -> Any:
        match step:
            case Send():
                return self._http.send(_request(self._http, step))
            case Open(send):
                response = self._http.send(_request(self._http, send), stream=True)
                if not response.is_success:
                    response.read()
                return Stream(response, response.iter_raw())
            case Read(stream):
                return next(cast("Generator[bytes]", stream.blocks), None)
            case Close(stream):
                return stream.response.close()
            case Sleep(seconds):
                return time.sleep(seconds)
        raise TypeError(step)


class AsyncConnection:
    """The same for asyncio."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._http = httpx.AsyncClient(base_url=url, headers=headers, **_options(url))

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """The value of a flow that gives no items."""
        walk = Walk(flow)
        while (step := walk.step()) is not None:
            with walk:
                walk.result = await self._result(step)
        return walk.value

    async def items(self, flow: Flow[None]) -> AsyncGenerator[Any]:
        """What a flow gives."""
        walk = Walk(flow)
        while (step := walk.step()) is not None:
            with walk:
                if isinstance(step, Give):
                    for item in step.items:
                        yield item
                else:
                    walk.result = await self._result(step)

    async def _result(self, step: Step) -> Any:
        match step:
            case Send():
                return await self._http.send(_request(self._http, step))
            case Open(send):
                response = await self._http.send(_request(self._http, send), stream=True)
                if not response.is_success:
                    await response.aread()
                return Stream(response, response.aiter_raw())
            case Read(stream):
                return await anext(cast("AsyncGenerator[bytes]", stream.blocks), None)
            case Close(stream):
                return await stream.response.aclose()
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
        raise TypeError(step)


def _request(http: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
    timeout = httpx.Timeout(send.read_s, connect=CONNECT_TIMEOUT_S)
    return http.build_request(send.method, send.path, timeout=timeout, **send.options)


def _options(url: str) -> dict[str, Any]:
    """The environment's proxy settings are never used for this machine, and certificates not without TLS."""
    parts = httpx.URL(url)
    return {"trust_env": not is_loopback(parts.host), "verify": parts.scheme == "https"}
