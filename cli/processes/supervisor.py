"""Keeps a set of child processes running: starts them in order, restarts crashed ones, stops them in stages.

A child that was ready once is restarted without limit, with backoff (cli/processes/restart_backoff.py). The
on_poll callback may begin and end further children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.base.errors import EXIT_MODEL, CliError, ModelNotLoadable
from cli.processes import die_with_parent
from cli.processes.private_files import private_opener
from cli.processes.restart_backoff import START_LIMIT, Restart, Restarts
from tasks.base.readiness import READY_FD

POLL_S = 0.1  # interval at which dead children are detected
TAIL_LINES = 12  # of the log, shown when its child is given up
TAIL_BYTES = 16_384


@dataclass(frozen=True)
class ChildSpec:
    """One child. stop_stage: lower stages are stopped first. model_exit: exit code 3 is final, unless it was
    ready before: then its model can be loaded, and what prevents it now may pass.

    ready is called until it says yes before the next child is started. Without it, a child is ready when it
    has written to the descriptor in READY_FD. One that is needed and ends START_LIMIT times without ever
    having been ready is given up. on_given_up is called with the reason, instead of giving up all children.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    stop_stage: int = 0
    stop_timeout_s: float = 5.0
    model_exit: bool = False
    needed: bool = True
    ready: Callable[[], bool] | None = None
    on_given_up: Callable[[CliError], None] | None = None


class Supervisor:
    """Runs its children from a separate thread, to whose lifetime they are bound.

    say gets one line for each event. After start(), failed() gives the reason the children were
    given up, if they were; on_failure is called from the supervisor's thread when that happens.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        say: Callable[[str], None],
        on_failure: Callable[[CliError], None] | None = None,
        on_poll: Callable[[Supervisor], None] | None = None,
        on_restarts: Callable[[Sequence[Restart]], None] = lambda _: None,
    ) -> None:
        """on_poll: called at every poll, once the given children are started; may call begin() and end().

        on_restarts: called at each change with the current restarts, from the supervisor's thread.
        """
        self._specs = list(specs)
        self._say = say
        self._on_failure = on_failure
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._on_poll = on_poll
        self._ready_pipes: dict[str, int] = {}  # of children that have not reported ready yet
        self._restarts = Restarts(on_restarts)
        self._ending: dict[str, float] = {}  # deadline of each, on the monotonic clock
        self._stopping = threading.Event()
        self._hurried = False
        self._failure: CliError | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop every child and return when none is left."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def hurry(self) -> None:
        """Have stop() kill what is still running. Callable from a signal handler."""
        self._hurried = True

    def failed(self) -> CliError | None:
        return self._failure

    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in list(self._children.items()) if not _has_ended(child)}

    def begin(self, spec: ChildSpec) -> None:
        """Add a child. Like end() and has(), only to be called from on_poll."""
        self._specs.append(spec)
        self._restarts.added(spec.name)
        self._spawn(spec)

    def end(self, name: str, signum: int, within_s: float) -> None:
        """Signal a child to end, kill it after within_s, and forget it."""
        _signal(self._children[name], signum)
        self._ending[name] = time.monotonic() + within_s

    def pause(self, name: str) -> float | None:
        """Seconds until the restart of a child; None if none is scheduled."""
        return self._restarts.pause(name)

    def has(self, name: str) -> bool:
        """Whether there is such a child: it runs, is to be restarted, or has not ended yet."""
        return any(spec.name == name for spec in self._specs)

    def _run(self) -> None:
        try:
            for spec in tuple(self._specs):
                if not self._stopping.is_set():
                    self._spawn(spec)
                    self._await_ready(spec)
            while not self._stopping.wait(POLL_S):
                self._check_children()
                if self._on_poll is not None:
                    self._on_poll(self)
        except CliError as error:
            self._failure = error
        except OSError as error:
            self._failure = CliError(f"cannot start a service: {error}")
        finally:
            self._stop_all()
            if self._failure is not None and self._on_failure is not None:
                self._on_failure(self._failure)

    def _spawn(self, spec: ChildSpec) -> None:
        command = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *spec.argv]
        ready, ready_writer = os.pipe()
        os.set_blocking(ready, False)
        with open(spec.log, "ab", opener=private_opener) as log, os.fdopen(ready_writer, "wb"):
            self._ready_pipes[spec.name] = ready
            self._children[spec.name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.env, READY_FD: str(ready_writer)},
                pass_fds=(ready_writer,),
                process_group=0,  # Ctrl-C reaches only this process, which stops the children in order
            )
        self._restarts.started(spec.name)

    def _await_ready(self, spec: ChildSpec) -> None:
        if spec.ready is None:
            return
        while not spec.ready():
            if self._stopping.wait(POLL_S):
                return
            self._check_children()
        self._restarts.ready(spec.name)

    def _check_children(self) -> None:
        """Detect children that died, and restart them when their backoff is over."""
        now = time.monotonic()
        self._restarts.forget_healthy()
        for spec in tuple(self._specs):
            child = self._children.get(spec.name)
            if child is None:
                continue
            pause = self._restarts.pause(spec.name)
            if spec.name in self._ending:
                if _has_ended(child) or now >= self._ending[spec.name]:
                    self._forget(spec)
            elif pause is not None:
                if not pause:
                    self._spawn(spec)
            elif _has_ended(child):
                code = _end_group(child)
                self._read_ready(spec.name)
                try:
                    self._crashed(spec, code)
                except CliError as error:
                    if spec.on_given_up is None:
                        raise
                    self._restarts.forget(spec.name)
                    self._forget(spec)
                    spec.on_given_up(error)

    def _read_ready(self, name: str) -> None:
        """Read whether a child that has ended had reported ready."""
        with contextlib.suppress(BlockingIOError):  # one that was not, and whose own children still end
            if os.read(self._ready_pipes[name], 1):
                self._restarts.ready(name)
        self._close_pipe(name)

    def _close_pipe(self, name: str) -> None:
        if (descriptor := self._ready_pipes.pop(name, None)) is not None:
            os.close(descriptor)

    def _forget(self, spec: ChildSpec) -> None:
        _end_group(self._children.pop(spec.name))
        self._close_pipe(spec.name)
        self._ending.pop(spec.name, None)
        self._specs.remove(spec)

    def _crashed(self, spec: ChildSpec, code: int) -> None:
        """Schedule the restart, or raise if the child is given up."""
        if spec.model_exit and code == EXIT_MODEL and not self._restarts.was_ready(spec.name):
            raise ModelNotLoadable(_last_error(spec.log))
        restart = self._restarts.ended(spec.name, _describe(code))
        if spec.needed and self._restarts.hopeless(spec.name):
            raise CliError(
                f"{spec.name} ended {START_LIMIT} times before it was ready "
                f"(last: {restart.reason}); end of {spec.log}:\n{tail(spec.log)}"
            )
        self._say(f"{restart.announcement()}; log: {spec.log}")

    def _stop_all(self) -> None:
        for stage in sorted({spec.stop_stage for spec in self._specs}):
            specs = [s for s in self._specs if s.stop_stage == stage and s.name in self._children]
            for spec in specs:
                if spec.name not in self._ending:
                    _signal(self._children[spec.name], signal.SIGTERM)
            started = time.monotonic()
            for spec in specs:
                self._await_end(self._children[spec.name], started + spec.stop_timeout_s)
                self._close_pipe(spec.name)

    def _await_end(self, child: subprocess.Popen[bytes], until: float) -> None:
        while not _has_ended(child) and time.monotonic() < until and not self._hurried:
            time.sleep(POLL_S / 2)
        _end_group(child)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Without taking its exit code: until that is taken, nobody gets its number, nor that of its group."""
    if child.returncode is None:
        with contextlib.suppress(AttributeError, ChildProcessError):  # macOS, or its code was taken
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, child.pid, ended) is not None
    return child.poll() is not None


def _signal(child: subprocess.Popen[bytes], signum: int) -> None:
    """Of a child alone, which stops its own helpers in its own order."""
    if not _has_ended(child):
        child.send_signal(signum)


def _end_group(child: subprocess.Popen[bytes]) -> int:
    """Kill a child, and what one that has ended left behind; its exit code."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: only zombies (macOS)
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def tail(log: Path) -> str:
    """The last lines of a log, indented."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").rstrip().splitlines()
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


def _last_error(log: Path) -> str:
    """The last line that names an error, without its prefix; else the last line of all."""
    lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    if errors:
        return errors[-1].split(":", 1)[1].strip()
    return lines[-1] if lines else f"the worker gave no reason; see {log}"
