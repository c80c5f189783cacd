"""TLS in front of a real server: the embedded one is built without, so a proxy has the certificates."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import trustme

READ_BYTES = 64 * 1024
HANDSHAKE = b"\x16"  # the first byte of every TLS connection
T = TypeVar("T")


class _Forwarder:
    """Listens on 127.0.0.1, and hands on what comes to the port that is chosen by its first bytes."""

    def __init__(self, choose: Callable[[bytes], int], context: ssl.SSLContext | None) -> None:
        self._choose = choose
        self._serving: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            first = await reader.read(READ_BYTES)
            inner, outer = await asyncio.open_connection("127.0.0.1", self._choose(first))
            outer.write(first)
            try:
                await asyncio.gather(_pump(reader, outer), _pump(inner, writer))
            finally:
                outer.close()
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            writer.transport.abort()
            self._serving.discard(task)


class TlsProxy(_Forwarder):
    """Has a certificate for these names, and hands on what comes to `port`.

    client_ca: whoever connects must bring a certificate that it vouches for.
    """

    def __init__(self, port: int, ca: trustme.CA, *names: str, client_ca: trustme.CA | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(*names).configure_cert(context)
        if client_ca is not None:
            client_ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        super().__init__(lambda _: port, context)


class EitherWay(_Forwarder):
    """One port for both: who speaks TLS is led to tls_port, who does not to `port`."""

    def __init__(self, port: int, tls_port: int) -> None:
        super().__init__(lambda first: tls_port if first.startswith(HANDSHAKE) else port, None)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(READ_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()


def ca_file(ca: trustme.CA, folder: Path) -> Path:
    """Its certificate, as a setting names it."""
    path = folder / "ca.pem"
    ca.cert_pem.write_to_path(path)
    return path
