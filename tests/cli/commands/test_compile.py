"""`medusaq compile` as a person runs it: whole, killed, interrupted, refused; and what workers make of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from cli.main import main
from cli.processes.folder_lock import FolderLock
from engine.weights.quantise import requantise
from tests.cli.helpers.running import Cli
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.forking.children import ENGINE, addresses

QUICK = ("--text", "text", "--rounds", "1", "--threads", "1")
SMALL = ("--types", "q8_0", *QUICK)


@pytest.fixture
def model(cli: Cli) -> str:
    (cli.folder / "text").write_text("abc jade bad cafe, 12 34. " * 8)
    cli.env["XDG_CACHE_HOME"] = str(cli.folder / "cache")
    write_tiny_gguf(cli.folder / "tiny.gguf")
    return "tiny.gguf"


@pytest.fixture
def forking(cli: Cli) -> None:
    """The command's own children are forks."""
    cli.command = ["-P", "-m", "tests.support.forking.children"]
    cli.env |= addresses(ENGINE)


@pytest.mark.usefixtures("forking")
def test_killed_in_the_middle_it_goes_on_to_a_table_a_report_and_a_recommendation(
    cli: Cli, model: str
) -> None:
    command = ("compile", model, "-o", "out", *SMALL, "--max-kl", "9")
    running = cli.start(*command)
    running.wait_for("source (f32): speed")
    running.send(signal.SIGKILL)
    running.wait()
    cli.gone()
    ended = cli(*command)
    assert ended.returncode == 0, ended.stderr
    steps = [line.partition("  ")[2] for line in ended.stderr.splitlines()]
    assert steps == ["source (f32): speed, round 1 of 1", "q8_0: speed, round 1 of 1"]
    assert sorted(path.name for path in (cli.folder / "out").iterdir()) == [
        *("compile.json", "lock", "report.html", "tiny.q8_0.gguf")
    ]
    lines = ended.stdout.splitlines()
    assert lines[0].split() == [
        *("type", "size", "load", "memory", "T(1)", "T(16)"),
        *("prefill", "bulk", "ratio", "KL", "top-1", "perplexity"),
    ]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["source (f32)", "q8_0"]
    assert lines[-1].startswith("recommended: ")
    assert "of the 2 whose divergence is at most 9 nats a token" in lines[-1]
    report = (cli.folder / "out" / "report.html").read_text()
    assert "data:image/png;base64," in report
    assert "n = 16" in report
    assert "http" not in report, "it needs nothing beside it"
    assert not list((cli.folder / "cache").rglob("*.gguf"))


@pytest.mark.usefixtures("forking")
def test_interrupted_it_says_how_to_go_on(cli: Cli, model: str) -> None:
    running = cli.start("compile", model, "-o", "out", *SMALL)
    running.wait_for("q8_0: quality")
    running.send(signal.SIGINT)
    assert running.wait() == 130
    assert running.lines[-1] == "interrupted; repeat the same command to continue"
    cli.gone()


@pytest.mark.usefixtures("forking")
def test_what_is_best_here_is_kept_and_served(cli: Cli, model: str) -> None:
    cli.env["MEDUSAQ_ENGINE_FACTORY"] = "engine:load"
    path = str(cli.folder / model)
    requantise(path, f"{path}.coarse", "q4_0", threads=1)
    Path(f"{path}.coarse").replace(path)
    near = ("--types", "f16,q8_0", "--max-kl", "1e-9")  # only F16's kernels are as exact
    ended = cli("compile", path, "--for-this-machine", *QUICK, *near, "--load", "one")
    assert ended.returncode == 0, ended.stderr
    kept = ended.stdout.splitlines()[-1]
    assert kept.startswith("saved for this machine: f16: ")
    [made] = (cli.folder / "cache").rglob("*.gguf")
    assert made.name == "tiny.f16.gguf", "nothing but what is served"
    assert {path.name for path in cli.folder.iterdir()} == {"cache", "text", "tiny.gguf"}

    running = cli.start("up", "--port", "0", "--no-flower", "--model", path, "--for-this-machine")
    assert running.wait_for("weights: ").partition("weights: ")[2] in kept
    url = running.wait_for("  gateway  ", 60).split()[-1]
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
    log = (cli.folder / ".medusaq" / "logs" / "worker.log").read_text()
    assert "chosen for this machine: the fastest for a lone stream" in log
    running.send(signal.SIGINT)
    assert running.wait() == 0


def test_a_worker_without_a_choice_says_which_command_makes_it(cli: Cli, model: str) -> None:
    cli.env |= {"MEDUSAQ_ENGINE_FACTORY": "engine:load", "MEDUSAQ_WEIGHTS": "for_this_machine"}
    cli.env |= {"MEDUSAQ_MODEL": model, "MEDUSAQ_REDIS_URL": "redis://127.0.0.1:1/0"}
    ended = cli("worker")
    assert ended.returncode == 3
    assert f"medusaq compile {model} --for-this-machine" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("tiny.gguf",), 2, "give -o DIR, the folder for the files and the report, or --for-this-machine"),
        (("tiny.gguf", "-o", "out", "--types", "q9"), 2, "no type q9; there are f32, f16, bf16, q8_0"),
        (("tiny.gguf", "-o", "out", "--load", "two"), 2, "--load: must be one or bulk, not two"),
        (("tiny.gguf", "-o", "text/out"), 1, "text/out: cannot be written: Not a directory"),
        (("none.gguf", "-o", "out"), 1, "none.gguf: no such file"),
    ],
)
@pytest.mark.usefixtures("model")
def test_what_is_wrong_is_one_line(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(cli.folder)
    monkeypatch.setattr("sys.argv", ["medusaq", "compile", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (code, "")
    assert message in said.err
    assert len(said.err.splitlines()) == 1, said.err


def test_a_folder_in_use(cli: Cli, model: str) -> None:
    lock = FolderLock(cli.folder / "out", "another compilation")
    lock.acquire()
    ended = cli("compile", model, "-o", "out", *SMALL)
    lock.release()
    assert ended.returncode == 1
    assert f"another compilation is using out (process {os.getpid()})" in ended.stderr


def test_a_full_disk_in_the_middle(cli: Cli, model: str) -> None:
    ended = cli("compile", model, "-o", "out", *SMALL, file_kb=60)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()[-1]) < 200
    assert "cannot be written: File too large" in ended.stderr
    assert not [path for path in Path(cli.folder / "out").rglob("*") if path.suffix in (".part", ".gguf")]


def test_load_goes_with_for_this_machine(cli: Cli) -> None:
    ended = cli("up", "--load", "one")
    assert (ended.returncode, ended.stderr) == (2, "error: --load requires --for-this-machine\n")
