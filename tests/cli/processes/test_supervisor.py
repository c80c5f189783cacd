"""The supervisor with small commands as children: restarts, giving up, stopping in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.base.errors import CliError, ModelNotLoadable
from cli.processes import restart_backoff as module
from cli.processes.restart_backoff import START_LIMIT
from cli.processes.supervisor import ChildSpec, Supervisor
from tasks.base.readiness import READY_FD
from tests.support.workers import ROOT, is_alive, wait_until

pytestmark = pytest.mark.slow

Start = Callable[..., Supervisor]
SLEEP = "import time; time.sleep(60)"


class Said(list[str]):
    def has(self, part: str) -> bool:
        return any(part in line for line in self)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def start(said: Said, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a supervisor and stops it at the end."""
    monkeypatch.setattr(module, "PAUSE_FIRST_S", 0.05)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 0.1)
    started: list[Supervisor] = []

    def begin(*specs: ChildSpec) -> Supervisor:
        supervisor = Supervisor(specs, said.append)
        started.append(supervisor)
        supervisor.start()
        return supervisor

    yield begin
    for supervisor in started:
        supervisor.hurry()
        supervisor.stop()


def spec(folder: Path, name: str, code: str, **fields: Any) -> ChildSpec:
    argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]
    return ChildSpec(name, argv, folder / f"{name}.log", **fields)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_crashed_child_is_restarted_and_said_so(tmp_path: Path, start: Start, said: Said) -> None:
    supervisor = start(spec(tmp_path, "one", SLEEP), spec(tmp_path, "two", SLEEP))
    wait_until(lambda: len(supervisor.pids()) == 2)
    before = supervisor.pids()
    os.kill(before["one"], signal.SIGKILL)
    wait_until(lambda: supervisor.pids().get("one", before["one"]) != before["one"])
    assert said == [f"one ended (killed by SIGKILL), restarting it in 0.05 s; log: {tmp_path / 'one.log'}"]
    assert supervisor.pids()["two"] == before["two"]
    assert supervisor.failed() is None


def test_a_child_that_never_gets_ready_is_given_up_with_its_last_words(
    tmp_path: Path, start: Start, said: Said
) -> None:
    other = spec(tmp_path, "other", SLEEP)
    supervisor = start(other, spec(tmp_path, "bad", "import sys; print('my reason'); sys.exit(7)"))
    wait_until(lambda: supervisor.failed() is not None and not supervisor.pids())
    message = str(supervisor.failed())
    assert message.startswith("bad ended 5 times before it was ready (last: exit code 7); end of ")
    assert message.endswith("  my reason")
    assert len(said) == 4
    assert (
        said[3].split("; log")[0].startswith("bad ended (exit code 7), restarting it in 0.1 s after 4 ends")
    )


READY = "import os; os.write(int(os.environ['MEDUSAQ_READY_FD']), b'1'); raise SystemExit(7)"


def test_a_child_that_was_ready_is_restarted_however_often_it_ends(
    tmp_path: Path, start: Start, said: Said
) -> None:
    supervisor = start(spec(tmp_path, "bad", READY), spec(tmp_path, "other", SLEEP))
    wait_until(lambda: said.has(f"after {2 * START_LIMIT} ends"))
    assert supervisor.failed() is None
    assert "other" in supervisor.pids()


def test_one_that_was_ready_once_may_fail_to_start_later(tmp_path: Path, start: Start, said: Said) -> None:
    once = tmp_path / "once"
    code = f"from pathlib import Path\nif Path({str(once)!r}).exists(): raise SystemExit(7)\n"
    supervisor = start(spec(tmp_path, "bad", code + f"Path({str(once)!r}).touch()\n" + READY))
    wait_until(lambda: said.has(f"after {2 * START_LIMIT} ends"))
    assert supervisor.failed() is None


def test_one_that_the_supervisor_saw_ready_counts_likewise(tmp_path: Path, start: Start, said: Said) -> None:
    supervisor = start(spec(tmp_path, "bad", "raise SystemExit(7)", ready=lambda: True))
    wait_until(lambda: said.has(f"after {2 * START_LIMIT} ends"))
    assert supervisor.failed() is None


def test_what_nothing_needs_is_never_given_up(tmp_path: Path, start: Start, said: Said) -> None:
    supervisor = start(spec(tmp_path, "view", "raise SystemExit(7)", needed=False))
    wait_until(lambda: said.has(f"after {2 * START_LIMIT} ends"))
    assert supervisor.failed() is None


def test_pauses_leave_no_descriptors_behind(tmp_path: Path, start: Start, said: Said) -> None:
    supervisor = start(spec(tmp_path, "bad", READY))
    wait_until(lambda: said.has("after 3 ends"))
    before = open_files()
    wait_until(lambda: said.has("after 12 ends"))
    assert open_files() <= before + 3
    supervisor.stop()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("starting\\nerror: no such file: m.gguf\\nbye", "no such file: m.gguf"),
        ("first\\nlast words", "last words"),
        ("", "the worker gave no reason"),
    ],
)
def test_exit_code_3_of_the_worker_is_final(
    tmp_path: Path, start: Start, said: Said, output: str, reason: str
) -> None:
    code = f"import sys; print('{output}'); sys.exit(3)"
    supervisor = start(spec(tmp_path, "worker", code, model_exit=True), spec(tmp_path, "other", SLEEP))
    wait_until(lambda: supervisor.failed() is not None and not supervisor.pids())
    error = supervisor.failed()
    assert isinstance(error, ModelNotLoadable)
    assert str(error).startswith(reason)
    assert said == []


def test_exit_code_3_after_the_worker_was_ready_is_a_crash_like_any(
    tmp_path: Path, start: Start, said: Said
) -> None:
    """Its model can be loaded: that memory is short, or the file away, may pass."""
    mark = tmp_path / "ran"
    code = f"""
import os, pathlib, sys, time
mark = pathlib.Path({str(mark)!r})
runs = len(mark.read_text()) if mark.exists() else 0
mark.write_text("x" * (runs + 1))
if runs == 1:
    sys.exit(3)
os.write(int(os.environ[{READY_FD!r}]), b"1")
if runs == 0:
    sys.exit(1)
time.sleep(600)
"""
    supervisor = start(spec(tmp_path, "worker", code, model_exit=True), spec(tmp_path, "other", SLEEP))
    wait_until(lambda: mark.exists() and len(mark.read_text()) == 3)
    assert supervisor.failed() is None
    assert {"worker", "other"} <= set(supervisor.pids())
    assert len(said) == 2


def test_the_failure_is_reported_after_everything_has_stopped(tmp_path: Path, said: Said) -> None:
    seen: list[tuple[CliError, dict[str, int]]] = []
    other = spec(tmp_path, "other", SLEEP)
    worker = spec(tmp_path, "worker", "raise SystemExit(3)", model_exit=True)
    supervisor = Supervisor(
        [other, worker], said.append, lambda error: seen.append((error, supervisor.pids()))
    )
    supervisor.start()
    wait_until(lambda: bool(seen))
    supervisor.stop()
    assert isinstance(seen[0][0], ModelNotLoadable)
    assert seen[0][1] == {}


def test_a_command_that_does_not_exist_is_given_up(tmp_path: Path, start: Start) -> None:
    supervisor = start(ChildSpec("x", ["/no/such/program"], tmp_path / "x.log"))
    wait_until(lambda: supervisor.failed() is not None)
    assert "cannot run /no/such/program: No such file or directory" in str(supervisor.failed())


def test_stopping_goes_by_stages_and_kills_what_does_not_listen(tmp_path: Path, start: Start) -> None:
    order = tmp_path / "order"
    polite = f"""
        import signal, sys, time
        def stop(*_):
            with open({str(order)!r}, "a") as file:
                file.write(sys.argv[0] + "NAME ")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("up", flush=True)
        time.sleep(60)
    """
    deaf = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(60)
    """
    specs = [
        spec(tmp_path, "last", polite.replace("NAME", "last"), stop_stage=2),
        spec(tmp_path, "deaf", deaf, stop_stage=1, stop_timeout_s=0.3),
        spec(tmp_path, "first", polite.replace("NAME", "first"), stop_stage=0),
    ]
    supervisor = start(*specs)
    wait_until(lambda: all(s.log.exists() and b"up" in s.log.read_bytes() for s in specs))
    pids = supervisor.pids()
    supervisor.stop()
    assert order.read_text().replace("-c", "").split() == ["first", "last"]
    assert not any(is_alive(pid) for pid in pids.values())


def test_what_a_child_leaves_behind_goes_with_it(tmp_path: Path, start: Start) -> None:
    code = f"""
        import subprocess, sys, time
        print(subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(60)"]).pid, flush=True)
        time.sleep(60)
    """
    parent = spec(tmp_path, "parent", code)
    supervisor = start(parent)
    wait_until(lambda: parent.log.exists() and parent.log.read_text().endswith("\n"))
    helper = int(parent.log.read_text())
    assert is_alive(helper)
    supervisor.stop()
    wait_until(lambda: not is_alive(helper))


def test_a_child_waits_until_the_one_before_is_ready(tmp_path: Path, start: Start) -> None:
    flag = tmp_path / "flag"
    supervisor = start(
        spec(tmp_path, "one", SLEEP, ready=flag.exists),
        spec(tmp_path, "two", SLEEP),
    )
    wait_until(lambda: "one" in supervisor.pids())
    assert "two" not in supervisor.pids()
    flag.touch()
    wait_until(lambda: "two" in supervisor.pids())


class Tending:
    """What is done at the next look, once, on the supervisor's thread."""

    def __init__(self) -> None:
        self.todo: list[Callable[[Supervisor], None]] = []

    def __call__(self, supervisor: Supervisor) -> None:
        while self.todo:
            self.todo.pop(0)(supervisor)


@pytest.fixture
def tended(start: Start, said: Said) -> Iterator[tuple[Supervisor, Tending]]:  # noqa: ARG001  short pauses
    tending = Tending()
    supervisor = Supervisor([], said.append, None, tending)
    supervisor.start()
    yield supervisor, tending
    supervisor.hurry()
    supervisor.stop()


def test_children_are_begun_and_ended_while_others_run(
    tmp_path: Path, tended: tuple[Supervisor, Tending], said: Said
) -> None:
    supervisor, tending = tended
    child = spec(tmp_path, "late", SLEEP)
    tending.todo.append(lambda its: its.begin(child))
    wait_until(lambda: "late" in supervisor.pids())
    first = supervisor.pids()["late"]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: supervisor.pids().get("late", first) != first)
    again = supervisor.pids()["late"]
    tending.todo.append(lambda its: its.end("late", signal.SIGINT, 30))
    wait_until(lambda: not supervisor.has("late"))
    assert not is_alive(again)
    assert len(said) == 1, "an end that was asked for is no crash"
    tending.todo.append(lambda its: its.begin(child))
    wait_until(lambda: "late" in supervisor.pids())


def test_a_child_that_does_not_end_when_asked_is_killed(
    tmp_path: Path, tended: tuple[Supervisor, Tending]
) -> None:
    supervisor, tending = tended
    deaf = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True)\n" + SLEEP
    )
    child = spec(tmp_path, "deaf", deaf)
    tending.todo.append(lambda its: its.begin(child))
    wait_until(lambda: child.log.exists() and b"up" in child.log.read_bytes())
    pid = supervisor.pids()["deaf"]
    tending.todo.append(lambda its: its.end("deaf", signal.SIGINT, 0.2))
    wait_until(lambda: not supervisor.has("deaf"))
    assert not is_alive(pid)


def test_a_child_that_waits_for_its_restart_can_be_ended(
    tmp_path: Path, tended: tuple[Supervisor, Tending], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_FIRST_S", 60)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 60)
    supervisor, tending = tended
    tending.todo.append(lambda its: its.begin(spec(tmp_path, "bad", "raise SystemExit(7)")))
    wait_until(lambda: said.has("restarting it in 60 s"))
    assert supervisor.has("bad")
    tending.todo.append(lambda its: its.end("bad", signal.SIGINT, 30))
    wait_until(lambda: not supervisor.has("bad"))


@pytest.mark.parametrize(("code", "last"), [(3, "its reason"), (7, "bad ended 5 times")])
def test_a_child_can_be_given_up_alone(
    tmp_path: Path, tended: tuple[Supervisor, Tending], code: int, last: str
) -> None:
    supervisor, tending = tended
    given_up: list[CliError] = []
    bad = f"import sys; print('its reason'); sys.exit({code})"
    child = spec(tmp_path, "bad", bad, model_exit=True, on_given_up=given_up.append)
    tending.todo.append(lambda its: its.begin(spec(tmp_path, "good", SLEEP)))
    tending.todo.append(lambda its: its.begin(child))
    wait_until(lambda: bool(given_up))
    assert str(given_up[0]).startswith(last)
    assert not supervisor.has("bad")
    assert list(supervisor.pids()) == ["good"]
    assert supervisor.failed() is None


def test_environment_and_log(tmp_path: Path, start: Start) -> None:
    child = spec(tmp_path, "child", "import os, time; print(os.environ['X'], flush=True); time.sleep(60)")
    start(ChildSpec(child.name, child.argv, child.log, {"X": "value"}))
    wait_until(lambda: child.log.exists() and child.log.read_text() == "value\n")


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        from pathlib import Path
        from cli.processes.supervisor import ChildSpec, Supervisor
        argv = [sys.executable, "-c", "import time; time.sleep(60)"]
        supervisor = Supervisor([ChildSpec("x", argv, Path({str(tmp_path / "x.log")!r}))], print)
        supervisor.start()
        while not supervisor.pids():
            time.sleep(0.01)
        print(supervisor.pids()["x"], flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    wait_until(lambda: not is_alive(child))
