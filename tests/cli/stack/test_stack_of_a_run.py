"""`medusaq run` with a stack of its own, which is killed, interrupted or cannot start."""

from __future__ import annotations

import signal
from collections.abc import Callable

import httpx
import pytest

from tests.cli.helpers.running import Begun, Cli, Running, texts, write_jsonl
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack


def of_run(running: Running) -> str:
    """The address of the gateway that a run has started for itself."""
    return running.wait_for("local stack for this run").split("gateway ")[1].split(",")[0]


def test_a_run_with_its_own_stack_survives_crashes_and_kill_9(cli: Cli) -> None:
    lines = [{"prompt": f"answer {n} delay=0.5"} for n in range(120)]
    write_jsonl(cli.folder / "p.jsonl", lines)
    command = ("run", "p.jsonl", "-o", "r.jsonl")
    slots = {"MEDUSAQ_SLOTS": "4", "MEDUSAQ_FILES": str(cli.folder / "of-others")}

    def ended(running: Running) -> Callable[[], int]:
        return Begun(cli.folder / "r.jsonl", of_run(running)).done_or_away

    first = cli.start(*command, **slots)
    done = ended(first)
    wait_until(lambda: done() >= 8, alive=lambda: first.process.poll() is None, report=first.text)
    first.send(signal.SIGKILL)
    first.wait()
    cli.gone()
    assert (cli.folder / "r.jsonl.run" / "stack" / "files").is_dir()

    second = cli.start(*command, **slots)
    done = ended(second)
    before = int(second.wait_for("going on: ").split()[2])
    assert 8 <= before < len(lines)
    wait_until(lambda: done() >= before + 4, alive=lambda: second.process.poll() is None)
    goal = before + 4
    for service in ("gateway", "worker", "io", "redis"):
        cli.kill(cli.service(service))
        second.wait_for(f"{service} ended (killed by SIGKILL)")
        goal = max(goal, done()) + 4
        wait_until(lambda goal=goal: done() >= goal, report=second.text)  # type: ignore[misc]
    assert second.wait() == 0, second.text()
    assert texts(cli.folder / "r.jsonl") == [(f"line-{n + 1}", f"answer {n}") for n in range(len(lines))]
    assert cli.processes() == {}
    assert sorted(path.name for path in cli.folder.iterdir()) == ["p.jsonl", "r.jsonl"]


def begun_on_its_own(cli: Cli, *prompts: str) -> Running:
    """A run whose requests all run, and of which none has ended."""
    write_jsonl(cli.folder / "p.jsonl", [{"prompt": prompt} for prompt in prompts])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", MEDUSAQ_SLOTS=str(len(prompts)))
    run = Begun(cli.folder / "r.jsonl", of_run(running))

    def all_run() -> bool:
        try:
            batches = run.batches()
        except httpx.HTTPError:
            return False
        return any(batch["running"]["lines"] == len(prompts) for batch in batches)

    wait_until(all_run, alive=lambda: running.process.poll() is None, report=running.text)
    return running


INTERRUPTED = (
    "interrupted: what runs has 5 s to end, and these answers are kept; Ctrl-C again ends it at once"
)


def test_ctrl_c_in_a_run_lets_what_runs_end_and_stops_its_stack(cli: Cli) -> None:
    running = begun_on_its_own(cli, "soon delay=3", "x delay=600", "later delay=3.5", "y delay=600")
    running.send(signal.SIGINT)
    assert running.wait() == 130
    assert INTERRUPTED in running.lines
    assert running.lines[-2:] == ["2 of 4 requests are done; repeat the same command to go on", "interrupted"]
    assert cli.processes() == {}
    assert "handed back" in (cli.folder / "r.jsonl.run" / "stack" / "logs" / "worker.log").read_text()
    again = cli.start("run", "p.jsonl", "-o", "r.jsonl", MEDUSAQ_SLOTS="4")
    again.wait_for("going on: 2 of 4 requests are done already")


def test_a_second_ctrl_c_ends_a_run_at_once(cli: Cli) -> None:
    running = begun_on_its_own(cli, "x delay=600", "y delay=600")
    running.send(signal.SIGINT)
    running.wait_for(INTERRUPTED)
    running.send(signal.SIGINT)
    assert running.wait() == 130
    assert running.lines[-2:] == ["0 of 2 requests are done; repeat the same command to go on", "interrupted"]
    assert cli.processes() == {}
    assert "handed back" not in (cli.folder / "r.jsonl.run" / "stack" / "logs" / "worker.log").read_text()


def test_an_interrupted_run_of_which_all_ends_is_done(cli: Cli) -> None:
    running = begun_on_its_own(cli, "a delay=3", "b delay=3.5")
    running.send(signal.SIGINT)
    assert running.wait() == 0, running.text()
    assert INTERRUPTED in running.lines
    assert texts(cli.folder / "r.jsonl") == [("line-1", "a"), ("line-2", "b")]
    assert cli.processes() == {}


def test_ctrl_c_while_a_runs_stack_starts_stops_it(cli: Cli) -> None:
    write_jsonl(cli.folder / "p.jsonl", [{"prompt": "x delay=600"}])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl")
    running.wait_for("local stack for this run")
    wait_until(lambda: any(command.endswith("-m cli io ") for command in cli.processes().values()))
    running.send(signal.SIGINT)
    assert running.wait() == 130
    assert running.lines[-2:] == ["0 of 1 requests are done; repeat the same command to go on", "interrupted"]
    assert cli.processes() == {}


def test_a_run_whose_model_cannot_be_loaded(cli: Cli) -> None:
    write_jsonl(cli.folder / "p.jsonl", [{"prompt": "x"}])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", SCRIPTED_LOAD_ERROR="broken")
    assert running.wait() == 3
    assert running.lines[-1] == "error: the model cannot be loaded: broken"
    assert "repeat the same command" not in running.text()
