"""The server of forks.py: it has imported the services and the command, and forks for each request."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from tests.support.forking.forks import ADDRESS, MOST_BYTES, MOST_FILES, ask, is_python, read_by_imports
from tests.support.tuned import tune

# None of these may read a setting by being imported.
IMPORTED = (
    "api.app",
    "api.http.bounded_protocol",
    "celery.app.amqp",
    "celery.app.events",
    "celery.app.log",
    "celery.backends.base",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.loaders.app",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "celery.worker.worker",
    "cli.doctor.checks",
    "cli.gateway.retrying_client",
    "cli.main",
    "cli.run.session",
    "cli.stack.ephemeral_stack",
    "cli.stack.services",
    "cli.views.progress",
    "engine",
    "flower.command",
    "jinja2",
    "kombu.transport.redis",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "prometheus_client.parser",
    "rich.live",
    "rich.progress",
    "tasks.batches.leader",
    "tasks.files.factory",
    "tasks.store.api_keys",
    "tasks.webhooks.sender",
    "tasks.worker.model_worker",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
)
OURS = ("api", "cli", "common", "engine", "tasks")
DIES_WITH_PARENT = 5  # words of what the supervisor puts in front of a command
Told = dict[int, tuple[int, socket.socket]]  # by pidfd of a fork: its pid, and who hears of its end


def serve(number: int, address: str, imported: Sequence[str] = ()) -> None:
    """Until the other end of this socket is closed; returns in the forks too, when they are done."""
    before = set(os.environ)
    tune()
    for name in imported or IMPORTED:
        import_module(name)
    by_imports = {name: value for name, value in os.environ.items() if name not in before}
    _forget_metrics()
    assert "tasks.app" not in sys.modules, "it reads the settings"
    assert threading.active_count() == 1, "a thread would be missing in the forks"
    gc.freeze()
    with (
        socket.socket(fileno=number) as owner,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
    ):
        listening.bind(f"\0{address}")
        listening.listen()
        wanted = _until_forked(owner, listening)
    if wanted is not None:
        os.environ.clear()
        os.environ.update({**by_imports, **wanted["env"]})
        _become(wanted["command"], wanted["folder"], wanted.get("parent"))


def _forget_metrics() -> None:
    """Each service shows the metrics of the modules that it imports itself: none of these stays imported."""
    packages = [name for name, module in sys.modules.items() if hasattr(module, "__path__")]
    ours = {
        name: [*vars(module).values()]
        for name, module in sys.modules.items()
        if name.split(".")[0] in OURS and name not in packages
    }
    gone = {name for name, values in ours.items() if any(isinstance(v, MetricWrapperBase) for v in values)}
    while more := {name for name in ours.keys() - gone if any(_home(value) in gone for value in ours[name])}:
        gone |= more
    for name in gone:
        del sys.modules[name]
        package, _, child = name.rpartition(".")
        delattr(sys.modules[package], child)
    assert "tasks.base.telemetry.metrics" not in sys.modules, "it has the registry"


def _home(value: object) -> str | None:
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)


def _until_forked(owner: socket.socket, listening: socket.socket) -> Any:
    """In each fork what it was asked for, with its standard files open; None at the end of the server."""
    told: Told = {}
    others: set[socket.socket] = set()  # connections of forks that start processes themselves
    while True:
        ready, _, _ = select.select([owner, listening, *others, *told], [], [])
        for one in ready:
            if isinstance(one, int):
                _tell_end(told, one)
            elif one is listening:
                others.add(listening.accept()[0])
            else:
                request, files, _, _ = socket.recv_fds(one, MOST_BYTES, MOST_FILES)
                if request:
                    wanted = json.loads(request)
                    if _fork(told, files, wanted.get("places", []), [owner, listening, *others]):
                        return wanted
                elif one is owner:
                    for pid, _ in told.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                else:
                    others.remove(one)
                    one.close()


def _tell_end(told: Told, pidfd: int) -> None:
    pid, listener = told.pop(pidfd)
    os.close(pidfd)
    if os.getpgid(pid) == pid:
        os.killpg(pid, signal.SIGKILL)  # as the supervisor does for its children before it takes their code
    _, status = os.waitpid(pid, 0)
    with listener, suppress(OSError):  # nobody waits for it any more
        listener.send(str(os.waitstatus_to_exitcode(status)).encode())


def _fork(told: Told, files: list[int], places: list[int], ours: list[socket.socket]) -> bool:
    """Whether this is the fork. places: file descriptors beyond the standard ones. ours: not for the fork."""
    listener = socket.socket(fileno=files.pop(0))
    if pid := os.fork():
        for file in files:
            os.close(file)
        pidfd = os.pidfd_open(pid)
        told[pidfd] = pid, listener
        with suppress(OSError):
            socket.send_fds(listener, [str(pid).encode()], [pidfd])
        return False
    for pidfd, (_, other) in told.items():
        os.close(pidfd)
        ours.append(other)
    for one in (listener, *ours):
        one.close()
    above = max([*files, *places]) + 1
    moved = [os.dup2(file, above + index) for index, file in enumerate(files)]
    for place, file in zip([0, 1, 2, *places], moved, strict=True):
        os.dup2(file, place)
    for file in {*files, *moved} - {0, 1, 2, *places}:
        os.close(file)
    return True


def _become(command: list[str], folder: str, parent: int | None) -> None:
    _show(command)
    os.chdir(folder)
    if parent is not None:
        os.setpgid(0, 0)
        threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    if "CHAOS_CLOCK" in os.environ:
        ctypes.CDLL(None).chaos_clock_begin()
    supervisor: Any = import_module("cli.processes.supervisor")
    supervisor.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": _child})
    kind, what, *rest = command[1 + (command[1] == "-P") :]
    sys.argv = [what if kind == "-m" else kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})


def _show(command: list[str]) -> None:
    """To others, as command line and environment of this process, over those of the server."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    starts_and_ends = [int(field) for field in fields[45:49]]  # arg_start, arg_end, env_start, env_end
    marked = sorted(os.environ.items(), key=lambda item: not item[0].startswith("TEST_"))
    shown = ["\0".join(command), "\0".join(f"{name}={value}" for name, value in marked)]
    for text, start, end in zip(shown, starts_and_ends[::2], starts_and_ends[1::2], strict=True):
        size = end - start - 1
        ctypes.memmove(start, os.fsencode(text)[:size].ljust(size, b"\0"), size)


def _die_with(parent: int) -> None:
    """What PR_SET_PDEATHSIG does for a child."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(parent)], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def _child(command: list[str], *, env: Mapping[str, str], pass_fds: tuple[int, ...], **files: Any) -> Any:
    """subprocess.Popen of the supervisor, for its services."""
    words = command[DIES_WITH_PARENT:]
    becomes_another = "redis" in words  # by exec, which ends the thread of _die_with
    same = is_python(words) and read_by_imports(env) == read_by_imports(os.environ)
    if becomes_another or not same:
        return subprocess.Popen(command, env=env, pass_fds=pass_fds, **files)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        server.connect(f"\0{os.environ[ADDRESS]}")
        standard = (files["stdin"], files["stdout"], files["stderr"])
        more = {"places": pass_fds, "parent": os.getpid()}
        return ask(server, words, Path.cwd(), env, (*standard, *pass_fds), **more)
