"""Compiles grammars on trial in a child process, under limits, and caches the verdicts."""

from __future__ import annotations

import hashlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from engine.base.errors import EngineError
from engine.sampling import grammar_process
from engine.sampling.grammar_process import ANSWER, HEADER, STARTED, TokenTexts, write_vocabulary

SHORT_CPU_S = 0.2  # ordinary schemas take some milliseconds; 600 optional properties 0.1 s
LONG_CPU_S = 1.0  # 2,000 optional properties take 0.4 s, 5,000 required ones 0.6 s
LONG_AT_ONCE = 2  # grammars that take more than SHORT_CPU_S; others need not wait for them
HEAP_BYTES = 48 << 20  # of one compiled grammar; 5,000 properties take 35 MiB
WALL_S = 20.0  # for LONG_CPU_S on a machine with little time to spare
POLL_S = 0.05  # between two calls of check
REMEMBERED = 1024  # verdicts of some 100 bytes

# glibc sets 64 MiB of addresses apart for each thread that allocates: over the limit at once.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}

TOO_COMPLEX = (
    f"the schema takes more than {LONG_CPU_S:g} s or {HEAP_BYTES >> 20} MiB to compile: "
    "use fewer optional properties, smaller multiples, or several schemas"
)

Check = Callable[[], None]  # raises when the result is no longer wanted


@dataclass(frozen=True, slots=True)
class Verdict:
    """error: of llguidance; None for a grammar that can be compiled. within_limits: False for one that
    cannot be compiled in time or memory. long: it took more than SHORT_CPU_S."""

    error: str | None = None
    within_limits: bool = True
    long: bool = False


class GrammarTrials:
    """Tries grammars from any thread; the child process starts with the first."""

    def __init__(self, texts: Callable[[], TokenTexts]) -> None:
        self._texts = texts
        self._process: _Process | None = None
        self._process_lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._verdicts_lock = threading.Lock()
        self._long = threading.Semaphore(LONG_AT_ONCE)

    def close(self) -> None:
        """End the child process; a further trial starts another."""
        with self._process_lock:
            process, self._process = self._process, None
        if process:
            process.close()

    def verdict(self, grammar: str, check: Check) -> Verdict:
        """check is called every POLL_S. Raises EngineError when there can be no trial, and what check raises.

        Every grammar gets a short trial at once. Only one that needs longer waits, for its turn among
        such ones, and is given a lower priority.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        if known := self._recall(digest):
            return known
        error = self._try(grammar, SHORT_CPU_S, long=False, check=check)
        if error is not None:
            return self._remember(digest, Verdict(error or None))
        self.begin_long(check)
        try:
            if known := self._recall(digest):  # tried by another while this one waited
                return known
            began = time.monotonic()
            error = self._try(grammar, LONG_CPU_S, long=True, check=check)
            if error is not None:
                return self._remember(digest, Verdict(error or None, long=True))
            beyond = Verdict(within_limits=False)
            if time.monotonic() - began >= WALL_S:  # a busy machine: another time it may be in time
                return beyond
            return self._remember(digest, beyond)
        finally:
            self.end_long()

    def begin_long(self, check: Check) -> None:
        """Wait until fewer than LONG_AT_ONCE compile what takes long; end_long() lets another begin."""
        while not self._long.acquire(timeout=POLL_S):
            check()

    def end_long(self) -> None:
        self._long.release()

    def _recall(self, digest: bytes) -> Verdict | None:
        with self._verdicts_lock:
            verdict = self._verdicts.get(digest)
            if verdict:
                self._verdicts.move_to_end(digest)
            return verdict

    def _remember(self, digest: bytes, verdict: Verdict) -> Verdict:
        with self._verdicts_lock:
            self._verdicts[digest] = verdict
            if len(self._verdicts) > REMEMBERED:
                self._verdicts.popitem(last=False)
        return verdict

    def _try(self, grammar: str, cpu_s: float, long: bool, check: Check) -> str | None:
        """The error of llguidance, empty for none; None when a limit ended the trial."""
        for _ in range(2):  # the child process may have been killed since the last trial
            process = self._running()
            with process.connect() as connection:
                trial = _Trial(connection, check)
                if trial.receive(len(STARTED)) == STARTED:
                    raw = grammar.encode()
                    trial.send(HEADER.pack(cpu_s, HEAP_BYTES, len(raw), long) + raw)
                    answer = trial.receive()
                    return answer[1:].decode() if answer.startswith(ANSWER) else None
            self._discard(process)
        raise EngineError("the process that compiles grammars does not start", code="internal_error")

    def _running(self) -> _Process:
        with self._process_lock:
            if self._process is None:
                self._process = _Process(self._texts())
            return self._process

    def _discard(self, process: _Process) -> None:
        with self._process_lock:
            if self._process is process:
                self._process = None
        process.close()


class _Process:
    """The running program of grammar_process."""

    def __init__(self, texts: TokenTexts) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", grammar_process.__file__, str(theirs.fileno())]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_HEAP},
            )
        self.pid = process.pid
        self._control = ours
        self._finalizer = weakref.finalize(self, _end, process, ours)
        assert process.stdin
        with suppress(OSError), process.stdin:  # where it has died, the trial finds out
            write_vocabulary(process.stdin, texts)

    def connect(self) -> socket.socket:
        """A socket for one trial; at its end at once when the process is gone."""
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):
            socket.send_fds(self._control, [b"t"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        self._finalizer()


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()


class _Trial:
    """One side of a trial's socket."""

    def __init__(self, connection: socket.socket, check: Check) -> None:
        self._connection = connection
        self._check = check
        self._until = time.monotonic() + WALL_S
        connection.setblocking(False)

    def receive(self, most: int | None = None) -> bytes:
        """All until the end, or so many bytes. What is there at WALL_S if that comes first."""
        received = b""
        while (most is None or len(received) < most) and self._wait(select.POLLIN):
            try:
                part = self._connection.recv(65536 if most is None else most)
            except OSError:
                break
            if not part:
                break
            received += part
        return received

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._wait(select.POLLOUT):
            try:
                view = view[self._connection.send(view) :]
            except BlockingIOError:
                continue
            except OSError:  # it was killed; receive() finds out
                return

    def _wait(self, event: int) -> bool:
        poller = select.poll()
        poller.register(self._connection, event)
        while time.monotonic() < self._until:
            self._check()
            if poller.poll(POLL_S * 1e3):
                return True
        return False
