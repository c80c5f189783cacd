"""`medusaq up` with several models and a memory budget: real processes, counted while they run."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine import EngineConfig
from engine.host.file_digest import FileDigest
from engine.tools.memory_estimate import needed
from engine.tools.model_registry import NamedModel, Register
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, Running
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.tuned import constants
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
WORKER = "-m cli worker "
SOON = {"MEDUSAQ_SLOTS": "2", **constants({"cli.stack.model_pool.TURN_S": 1})}
REAL = {
    "MEDUSAQ_ENGINE_FACTORY": "engine:load",
    "MEDUSAQ_SPECULATION": "0",
    "MEDUSAQ_WEIGHTS": "as_shipped",
    "MEDUSAQ_LEASE_MS": "10000",
}


@pytest.fixture
def models(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny models a, b and c, registered by these names."""
    folder = tmp_path_factory.mktemp("models")
    register = Register(folder / "medusaq")
    paths = {name: write_tiny_gguf(folder / f"{name}.gguf", seed) for seed, name in enumerate("abc", 7)}
    for name, path in paths.items():
        register.add(NamedModel(name, FileDigest(path, "", Path(path).stat().st_size, path)))
    cli.env["XDG_DATA_HOME"] = str(folder)
    return paths


def budget(path: str, count: float) -> str:
    """Memory for so many such models."""
    return str(round(count * needed(EngineConfig(model=path, speculation=False)).total))


class Watch:
    """Counts the model workers that run at the same time, all the while."""

    def __init__(self, cli: Cli) -> None:
        self.most = 0
        self._cli = cli
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            # While one looks, a worker may end and the next begin; who ran between two looks is in both.
            between = {*workers(self._cli)} & {*workers(self._cli)}
            self.most = max(self.most, len(between))

    def close(self) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture
def watch(cli: Cli) -> Iterator[Watch]:
    watch = Watch(cli)
    yield watch
    watch.close()


def workers(cli: Cli) -> list[int]:
    return [pid for pid, command in cli.processes().items() if WORKER in command]


def up(cli: Cli, *asked: str, memory: str, **env: str) -> tuple[Running, str]:
    models = [part for one in asked for part in ("--model", one)]
    cli.env["MEDUSAQ_SPECULATION"] = "0"
    cli.command = ["-P", "-m", "tests.support.tuned"]
    running = cli.start("up", "--port", "0", "--no-flower", *models, "--memory", memory, **env)
    return running, running.wait_for("  gateway  ", 60).split()[-1]


def sent(url: str, model: str, prompt: str) -> str:
    """The id of a job, as soon as the gateway knows the model."""
    body = {"prompt": prompt, "model": model, "max_tokens": 12}
    answers: list[httpx.Response] = []

    def taken() -> bool:
        answers.append(httpx.post(f"{url}/v1/jobs", json=body))
        return answers[-1].status_code == 202

    wait_until(taken, report=lambda: answers[-1].text)
    return str(answers[-1].json()["id"])


def ended(url: str, job: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def over() -> bool:
        answer = httpx.get(f"{url}/v1/jobs/{job}", headers={"Prefer": "wait=10"}, timeout=20)
        seen.append(answer.json())
        return seen[-1]["status"] not in ("queued", "running")

    wait_until(over, 60, report=lambda: str(seen[-1]))
    return seen[-1]


def test_models_take_turns_in_memory_for_one(cli: Cli, models: dict[str, str], watch: Watch) -> None:
    running, url = up(cli, "a", "b", "c", memory=budget(models["a"], 1.5), **SOON)
    running.wait_for("loading a")
    steady = [sent(url, "a", f"a {n} delay=2") for n in range(60)]  # 60 s of it, two at a time
    others = [(name, sent(url, name, f"{name} {n} delay=0.3")) for n in range(2) for name in "bc"]
    for name, job in others:
        record = ended(url, job)
        assert (record["status"], record["model"]) == ("succeeded", name), record
    for job in reversed(steady[:-2]):
        httpx.post(f"{url}/v1/jobs/{job}/cancel")
    ends = [ended(url, job)["status"] for job in steady]
    assert "cancelled" in ends, "they did not wait for all of a's"
    assert {*ends[-2:]} == {"succeeded"}, "a comes back for what waits"

    victim = workers(cli)[0]
    cli.kill(victim)
    running.wait_for("(killed by SIGKILL), restarting it")
    for name in "abc":
        assert ended(url, sent(url, name, "after the crash"))["model"] == name
    assert victim not in workers(cli)
    running.send(signal.SIGINT)
    assert running.wait() == 0
    assert cli.processes() == {}
    assert watch.most == 1


def test_a_running_job_is_ended_before_its_model_makes_room(cli: Cli, models: dict[str, str]) -> None:
    """Drain time is for Ctrl-C: a swap waits for what runs, and counts no second attempt."""
    running, url = up(
        cli, "a", "b", memory=budget(models["a"], 1.5), **SOON, MEDUSAQ_DRAIN_S="0", MEDUSAQ_LEASE_MS="10000"
    )
    long = sent(url, "a", "long delay=4")
    wait_until(lambda: httpx.get(f"{url}/v1/jobs/{long}").json()["status"] == "running")
    other = sent(url, "b", "other")
    running.wait_for("a is unloaded for another model once its running jobs have ended")
    record = ended(url, long)
    assert (record["status"], record["attempts"]) == ("succeeded", 1)
    assert ended(url, other)["model"] == "b"
    online = {"model": "a", "messages": [{"role": "user", "content": "parked?"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=online, timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "parked?", "it waits for the swap"
    hanging = sent(url, "a", "hanging delay=60")
    wait_until(lambda: httpx.get(f"{url}/v1/jobs/{hanging}").json()["status"] == "running")
    sent(url, "b", "waits")
    wait_until(lambda: sum("a is unloaded" in line for line in running.lines) == 2)
    shown = cli("top", "--once", "--url", url).stdout
    assert re.search(r"^a +stopping +0 +- +\d+ MB$", shown, re.MULTILINE), shown
    assert re.search(r"^b +parked +1 +[\d.]+ s +\d+ MB$", shown, re.MULTILINE), shown
    listed = {model["name"]: model for model in json.loads(cli("models", "list", "--json").stdout)}
    assert [(listed[name]["state"], listed[name]["waiting"]) for name in "abc"] == [
        ("stopping", 0),
        ("parked", 1),
        ("not served", 0),
    ]
    running.send(signal.SIGINT)
    assert running.wait() == 0, "Ctrl-C is not kept waiting by a swap under way"
    assert cli.processes() == {}


@pytest.mark.usefixtures("models")
def test_jobs_of_a_name_that_was_removed_fail_with_the_reason(cli: Cli) -> None:
    register = Register(Path(cli.env["XDG_DATA_HOME"]) / "medusaq")
    running, url = up(cli, "a", "b", memory=budget(register.get("a").model.path, 1.5), **SOON)
    running.wait_for("loading a")
    register.remove("b")
    record = ended(url, sent(url, "b", "hello"))
    assert record["error"]["code"] == "model_load_failed"
    assert record["error"]["message"] == "'b' is neither a file nor the name of a model; known: a, c"
    running.wait_for("b cannot be served, its jobs fail and the others go on: 'b' is neither a file")
    running.send(signal.SIGTERM)
    assert running.wait() == 0


def test_real_models_two_at_a_time_and_one_that_cannot_be_loaded(
    cli: Cli, models: dict[str, str], watch: Watch, tmp_path: Path
) -> None:
    content = Path(models["a"]).read_bytes()
    lacking = content.replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_dawn.weight")
    assert lacking != content
    (tmp_path / "broken.gguf").write_bytes(lacking)
    running, url = up(cli, "a", "broken.gguf", "b", "c", memory=budget(models["a"], 2.5), **REAL)
    line = running.wait_for("broken cannot be served, its jobs fail and the others go on", 60)
    record = ended(url, sent(url, "broken", "hello"))
    assert (record["status"], record["error"]["code"]) == ("failed", "model_load_failed")
    assert record["error"]["message"] in line
    texts = {}
    for name in "abc":
        record = ended(url, sent(url, name, "hello"))
        assert (record["status"], record["model"]) == ("succeeded", name)
        texts[name] = record["result"]["text"]
    assert len(set(texts.values())) == 3, "each by its own weights"
    assert watch.most == 2
    shown = cli("doctor").stdout
    assert "model memory" in shown
    assert "broken: its jobs fail: " in shown
    running.send(signal.SIGTERM)
    assert running.wait() == 0


@pytest.mark.usefixtures("models")
def test_where_no_model_can_be_loaded_the_stack_stops(cli: Cli) -> None:
    asked = ("--model", "a", "--model", "b")
    running = cli.start("up", "--port", "0", "--no-flower", *asked, SCRIPTED_LOAD_ERROR="no luck")
    assert running.wait() == 3
    assert running.lines[-1] == "error: the model cannot be loaded: no luck"
    assert cli.processes() == {}


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", "6 cows"), "--memory: '6 cows' is no size; say 6GB or 512MiB"),
        (("--memory", "0"), "--memory: no model runs in 0; say 6GB or 512MiB, or leave it out"),
        (("--memory", "-1GB"), "--memory: '-1GB' is no size; say 6GB or 512MiB"),
        (("--model", "a"), "two models are called 'a', and jobs name them by that: leave one out"),
        (("--model", "nobody"), "'nobody' is neither a file nor the name of a model; known: a, b, c"),
        (("--model", "none.gguf"), "none.gguf: no such file"),
        (("--memory", "10MB"), "a needs "),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    in_process: InProcessCli, arguments: tuple[str, ...], message: str
) -> None:
    said = in_process("up", "--port", "0", "--no-flower", "--model", "a", "--model", "b", *arguments)
    assert said.returncode == 2
    [line] = said.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    if message == "a needs ":
        assert "(the process 150 MB, " in line
        assert "and the memory budget is 10 MB: take fewer MEDUSAQ_KV_CELLS (now 8192), a smaller" in line


@pytest.mark.usefixtures("models")
def test_more_than_the_machine_has_is_warned_of(cli: Cli) -> None:
    running, _ = up(cli, "a", "b", memory="900TB", **SOON)
    running.wait_for("warning: a memory budget of ")
    wait_until(lambda: len(workers(cli)) == 2)
    running.send(signal.SIGTERM)
    assert running.wait() == 0
