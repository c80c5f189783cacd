"""Several models under one supervisor, with small commands in place of workers: what fails while it loads."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.processes import restart_backoff
from cli.processes.restart_backoff import START_LIMIT
from cli.processes.supervisor import ChildSpec, Supervisor
from cli.stack import pooled_model
from cli.stack.memory_budget import served_models
from cli.stack.model_pool import pool_of
from cli.stack.pooled_model import PooledModel, child_name
from cli.stack.swap_policy import Model, Phase
from engine.host.file_digest import digest_file
from engine.llama.model import default_model_path
from engine.tools.failing_engine import REASON
from engine.tools.model_registry import NamedModel, Register
from tasks.base.queue_names import QUEUES, list_key
from tasks.base.settings import Settings
from tasks.records.job import Priority
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.workers import wait_until

pytestmark = pytest.mark.slow

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


class Pool:
    """Of models a and b, whose workers never get ready unless a test says so."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.register = Register()
        for seed, name in enumerate("ab", 7):
            self.add(name, write_tiny_gguf(folder / f"{name}.gguf", seed))
        self.settings = settings.model_copy(update={"weights": "as_shipped", "speculation": False})
        self.models = served_models(["a", "b"], self.settings)
        self.need = self.models[0].needed.total
        self.said: list[str] = []
        self.began: list[dict[str, str]] = []  # what each worker was told
        self.argv = SLEEP
        self._folder = folder
        self.supervisor: Supervisor | None = None

    def add(self, name: str, path: str) -> None:
        self.register.add(NamedModel(name, digest_file(Path(path), path)), replace=True)

    def start(self, budget: int) -> Supervisor:
        def worker(env: dict[str, str], _place: int) -> ChildSpec:
            self.began.append(env)
            return ChildSpec("worker", self.argv, self._folder / "worker.log", env, model_exit=True)

        self._pool = pool_of(
            self.models, budget, self.settings, worker, self.said.append, self._folder / "note.json"
        )
        self.supervisor = Supervisor([], self.said.append, on_poll=self._pool.poll)
        self.supervisor.start()
        return self.supervisor

    def saying(self, part: str) -> None:
        wait_until(lambda: any(part in line for line in self.said), report=lambda: str(self.said))

    def close(self) -> None:
        if self.supervisor is not None:
            self.supervisor.hurry()
            self.supervisor.stop()
            self._pool.close()


@pytest.fixture
def pool(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    pool = Pool(settings, tmp_path)
    yield pool
    pool.close()


def ready(store: JobStore, supervisor: Supervisor, model: str) -> None:
    """As its worker says it, for as long as a test lasts."""
    pid = supervisor.pids()[child_name(model)]
    host = socket.gethostname()
    Registry(store.db, 60).refresh(WorkerInfo(f"{host}:{pid}", model, 2048, 1, pid, host, started_at=0.0))


def removed(pool: Pool) -> str:
    pool.register.remove("b")
    return "'b' is neither a file nor the name of a model; known: a"


def gone(pool: Pool) -> str:
    path = Path(pool.register.get("b").model.path)
    path.unlink()
    return f"the model of 'b' is gone: {path}; bring it back, or add 'b' again with --replace"


def larger(pool: Pool) -> str:
    pool.add("b", default_model_path())
    return "b needs "


@pytest.mark.parametrize("change", [removed, gone, larger])
def test_what_a_name_stands_for_is_looked_at_again_before_it_is_loaded(
    pool: Pool, change: Callable[[Pool], str]
) -> None:
    why = change(pool)
    supervisor = pool.start(int(2.2 * pool.need))
    pool.saying(f"b cannot be served, its jobs fail and the others go on: {why}")
    wait_until(lambda: child_name("b") in supervisor.pids())
    [refusing] = [env for env in pool.began if REASON in env]
    assert refusing["MEDUSAQ_MODEL"] == "./b.gguf", "it needs no file, only the name"
    assert refusing[REASON].startswith(why)


@pytest.mark.parametrize("kind", QUEUES)
def test_a_model_that_has_grown_waits_for_the_memory_it_needs_now(
    pool: Pool, store: JobStore, kind: str
) -> None:
    pool.add("b", default_model_path())
    [grown] = served_models(["b"], pool.settings)
    supervisor = pool.start(grown.needed.total)
    wait_until(lambda: child_name("a") in supervisor.pids())
    ready(store, supervisor, "a")
    store.db.redis.lpush(list_key(pool.settings, kind, "b"), "{}")
    pool.saying("a is unloaded for another model once its running jobs have ended")
    pool.saying("loading b")
    assert child_name("a") not in supervisor.pids()


def test_a_load_that_hangs_ends_and_keeps_nobody_waiting(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled_model, "LOAD_S", 1.5)
    monkeypatch.setattr(pooled_model, "LOAD_BYTES_PER_S", 2 * pool.need)
    supervisor = pool.start(int(1.5 * pool.need))
    hanging = child_name("a")
    wait_until(lambda: hanging in supervisor.pids())
    first = supervisor.pids()[hanging]
    pool.saying("a cannot be served, its jobs fail and the others go on: not loaded within 2 s, and its ")
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert any("its worker was killed; log: " in line for line in pool.said)


def test_jobs_without_a_model_start_one_that_can_run_them(pool: Pool, store: JobStore) -> None:
    pool.register.remove("a")
    supervisor = pool.start(pool.need)
    wait_until(lambda: child_name("a") in supervisor.pids())
    ready(store, supervisor, "a")
    store.db.redis.lpush(list_key(pool.settings, Priority.INTERACTIVE), "{}")
    pool.saying("loading b")


READY_AND_GONE = "import os; os.write(int(os.environ['MEDUSAQ_READY_FD']), b'1'); raise SystemExit(7)"


def crashing(pool: Pool) -> None:
    pool.argv = [sys.executable, "-I", "-S", "-c", READY_AND_GONE]


def test_a_model_whose_worker_crashes_again_and_again_is_not_given_up(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_backoff, "PAUSE_MAX_S", 0.05)
    crashing(pool)
    supervisor = pool.start(int(2.2 * pool.need))
    pool.saying(f"after {2 * START_LIMIT} ends")
    assert supervisor.failed() is None
    assert not any("cannot be served" in line for line in pool.said)


def test_while_a_crashed_model_rests_another_may_have_its_memory(
    pool: Pool, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAUSE_FIRST_S", "PAUSE_MAX_S"):
        monkeypatch.setattr(restart_backoff, name, 600.0)
    crashing(pool)
    for name in "ab":
        store.db.redis.lpush(list_key(pool.settings, Priority.INTERACTIVE, name), "{}")
    supervisor = pool.start(pool.need)
    pool.saying("worker of a ended (exit code 7), restarting it in 600 s")
    pool.saying("loading b")
    pool.saying("worker of b ended (exit code 7), restarting it in 600 s")
    wait_until(lambda: not supervisor.has(child_name("b")))
    assert sum(line.startswith("loading ") for line in pool.said) == 2, "a pause holds for a parked model too"
    assert supervisor.failed() is None


# What is seen of one, look by look


@pytest.fixture
def member(pool: Pool, tmp_path: Path) -> PooledModel:
    member = PooledModel(pool.models[0], Model("a", pool.need))
    member.mark_started(tmp_path / "a.log")
    return member


WORKER = WorkerInfo("w", "a", 2048, 1, 1, "h", 0.0)


def test_a_crash_gives_no_second_turn(member: PooledModel) -> None:
    member.observe(True, 1, None, 0, 0, 0.0)
    member.observe(True, 1, WORKER, 0, 0, 10.0)
    member.observe(True, None, None, 0, 0, 20.0)
    assert member.model.phase is Phase.LOADING
    member.observe(True, 2, None, 0, 0, 21.0)
    member.observe(True, 2, WORKER, 0, 0, 30.0)
    assert (member.model.phase, member.model.running_since) == (Phase.RUNNING, 10.0)
    member.observe(False, None, None, 0, 0, 40.0)
    assert member.model.phase is Phase.PARKED
    member.mark_started(Path("a.log"))
    member.observe(True, 3, None, 0, 0, 41.0)
    member.observe(True, 3, WORKER, 0, 0, 50.0)
    assert member.model.running_since == 50.0
