"""A TCP proxy on loopback that can be told to misbehave."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from enum import Enum

CHUNK = 65_536
CONNECT_S = 1.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, and lose what is under way


class Mode(Enum):
    """What becomes of bytes and connections."""

    PASS = "pass"  # everything goes through
    DROP = "drop"  # connections are reset, new ones too
    BLACK_HOLE = "black hole"  # connections stand, and nothing ever comes through: read, and lost
    DELAY = "delay"  # everything comes later


class Proxy:
    """Begins in Mode.PASS. Threads end with close()."""

    def __init__(self, port: int, delay_s: float = 0.1) -> None:
        """port: where the real server listens."""
        self._target, self._delay_s = port, delay_s
        self._mode = Mode.PASS
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._doomed: set[socket.socket] = set()  # something that was sent on them is lost
        self._losing: bytes | None = None  # words of the request that is lost next
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: Mode) -> None:
        """From now on. What a black hole has swallowed makes its connections useless: they are then reset."""
        self._mode = mode
        with self._lock:
            gone = list(self._open if mode is Mode.DROP else self._doomed)
        for connection in gone:
            self._reset(connection)

    def lose(self, words: bytes) -> None:
        """Drop the next request that contains these words, and whatever follows on its connection."""
        self._losing = words

    @property
    def has_lost(self) -> bool:
        """The request that lose() named has come."""
        return self._losing is None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            rest = list(self._open)
        for connection in rest:
            self._reset(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        if self._mode is Mode.DROP:
            self._reset(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target), CONNECT_S)
        except OSError:
            self._reset(client)
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(server)
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
        self._pump(client, server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        lost = False
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if not lost and self._losing is not None and self._losing in data:
                    lost, self._losing = True, None
                if lost or self._mode is Mode.BLACK_HOLE:
                    with self._lock:
                        self._doomed |= {source, sink}
                    continue
                if self._mode is Mode.DELAY:
                    time.sleep(self._delay_s)
                sink.sendall(data)
        self._reset(source)
        self._reset(sink)

    def _reset(self, connection: socket.socket) -> None:
        with self._lock:
            if connection not in self._open:
                return
            self._open.discard(connection)
            self._doomed.discard(connection)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        with contextlib.suppress(OSError):
            connection.close()
