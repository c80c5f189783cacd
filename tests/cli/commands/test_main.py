"""The command line itself: help, slips, and the commands for single jobs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cli.main import app
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.support.servers import free_port
from tests.support.workers import ROOT

COMMANDS = [
    "run",
    "validate",
    "submit",
    "status",
    "cancel",
    "jobs",
    "batches",
    "webhooks",
    "compare",
    "keys",
    "up",
    "down",
    "gateway",
    "worker",
    "io",
    "flower",
]


def test_the_overview_names_every_command(cli: Cli, in_process: InProcessCli) -> None:
    for ended in (cli(), in_process("--help"), in_process("-h")):
        assert ended.returncode == 0
        assert all(f" {command} " in ended.stdout for command in COMMANDS)
    assert in_process("--version").stdout.startswith("medusaq ")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(in_process: InProcessCli, command: str) -> None:
    ended = in_process(command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"medusaq {command}" in ended.stdout


@pytest.mark.parametrize("group", ["batches", "keys", "models", "webhooks", "bench"])
def test_a_group_alone_shows_its_help(in_process: InProcessCli, group: str) -> None:
    ended = in_process(group)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() == in_process(group, "--help").stdout.strip()
    assert f"medusaq {group} [OPTIONS] COMMAND" in ended.stdout
    wrong = in_process(group, "nonsense")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_no_help_has_names_of_types(in_process: InProcessCli) -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    below = {(name,): child for name, child in command.commands.items()}
    for (name,), child in list(below.items()):
        if isinstance(child, TyperGroup):
            below |= {(name, inner): each for inner, each in child.commands.items()}  # type: ignore[dict-item]
    assert len(below) > 40
    for arguments in ((), *below):
        text = in_process(*arguments, "--help").stdout
        assert "Usage: medusaq" in text
        assert not re.search(r"<[a-z|\[\] ]+>", text), arguments
    text = in_process("run", "--help").stdout
    for name, kind in (
        ("--raw", ""),
        ("--seed", "N "),
        ("--model", "TEXT "),
        ("--decoding", "auto|medusa|normal "),
    ):
        assert re.search(rf"{name} +{re.escape(kind)} *[A-Z]", text), name


def test_the_help_of_run_says_which_max_tokens_holds(in_process: InProcessCli) -> None:
    words = re.sub(r"[│\s]+", " ", in_process("run", "--help").stdout)
    assert " Most tokens of an answer, for lines that have no max_tokens." in words


def test_help_has_examples(in_process: InProcessCli) -> None:
    for command in ("run", "validate", "submit", "compare"):
        assert "Examples" in in_process(command, "--help").stdout
    for command in ("create", "list", "show", "cancel", "retry", "download"):
        assert "Examples" in in_process("batches", command, "--help").stdout
    for command in ("create", "list", "revoke"):
        assert "Examples" in in_process("keys", command, "--help").stdout
    for command in ("list", "replay"):
        assert "Examples" in in_process("webhooks", command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rnu",), "No such command 'rnu'. Did you mean 'run'? (see medusaq --help)"),
        (("run",), "Missing argument 'INPUT'. (see medusaq run --help)"),
        (("run", "x"), "Missing option '--output' / '-o'. (see medusaq run --help)"),
        (("up", "--prot", "1"), "No such option: --prot (Possible options: --port) (see medusaq up --help)"),
        (("up", "--port", "99999"), "Invalid value for '--port': "),
        (("jobs", "--status", "done"), "Invalid value for '--status': "),
        (("submit", "x", "--decoding", "fast"), "Invalid value for '--decoding': "),
        (("run", "x", "-o", "y", "--acceptance", "any"), "Invalid value for '--acceptance': "),
        (
            ("submit", "x", "--temperature", "9"),
            "Invalid value for '--temperature': Input should be less than",
        ),
        (
            ("run", "x", "-o", "y", "--temperature", "9"),
            "Invalid value for '--temperature': Input should be less than",
        ),
        (("submit", "x", "--system", "y", "--raw"), "--system needs the chat template, which --raw"),
    ],
)
def test_slips_are_one_line(in_process: InProcessCli, arguments: tuple[str, ...], message: str) -> None:
    ended = in_process(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {message}")
    assert ended.stderr.count("\n") == 1


def test_bytes_that_are_no_text_are_one_line(cli: Cli, in_process: InProcessCli) -> None:
    bad = "\udcff"  # the byte FF, as Python passes it on
    others = (("submit", "x", "--system", bad), ("status", bad), ("cancel", bad))
    for ended in (cli("submit", bad), *(in_process(*arguments) for arguments in others)):
        assert (ended.returncode, ended.stderr) == (2, "error: an argument is not UTF-8\n"), ended.args
    ended = cli("submit", "-", stdin=b"ab\xff")
    assert (ended.returncode, ended.stderr) == (2, "error: standard input is not UTF-8, at byte 2\n")


@pytest.mark.parametrize("arguments", [("submit", "x"), ("status", "x"), ("cancel", "x"), ("jobs",)])
def test_no_gateway_is_exit_code_4(in_process: InProcessCli, arguments: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = in_process(*arguments, "--url", url)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr == f"error: no gateway at {url}: connection refused\n"


@pytest.mark.stack
def test_what_is_no_gateway_is_said_so(in_process: InProcessCli, gateway: str) -> None:
    ended = in_process("jobs", "--url", f"{gateway}/elsewhere")
    assert ended.returncode == 1
    assert ended.stderr == "error: Not Found\n"


@pytest.mark.stack
def test_the_life_of_a_single_job(in_process: InProcessCli, gateway: str) -> None:
    in_process.env["MEDUSAQ_URL"] = gateway
    waited = in_process("submit", "hello there tokens=3", "--wait", "--system", "be brief", "--seed", "3")
    assert (waited.returncode, waited.stdout) == (0, "hello there\n")
    assert re.fullmatch(r"3 tokens, [\d.]+ tok/s, 3 steps, 1\.00 tokens/step, stop\n", waited.stderr)

    job = in_process(
        "submit", "-", "--max-tokens", "5", stdin=b"from a pipe tokens=4 steps=3 drafted=lookup:5:1"
    ).stdout.strip()
    assert (
        httpx.get(f"{gateway}/v1/jobs/{job}", headers={"Prefer": "wait=10"}).json()["status"] == "succeeded"
    )
    shown = in_process("status", job).stdout.splitlines()
    rows = dict(line.split(maxsplit=1) for line in shown if line and not line.startswith("finish"))
    assert (rows["id"], rows["status"], rows["tokens"]) == (job, "succeeded", "3+4")
    assert (rows["steps"], rows["tokens/step"]) == ("3", "1.33")
    assert rows["lookup"] == "drafts  1 of 5 accepted"
    assert shown[-2:] == ["", "from a pipe"]
    record = json.loads(in_process("status", job, "--json").stdout)
    assert (record["request"]["prompt"], record["request"]["max_tokens"]) == (
        "from a pipe tokens=4 steps=3 drafted=lookup:5:1",
        5,
    )

    slow = json.loads(in_process("submit", "slow delay=60", "--json").stdout)["id"]
    table = in_process("jobs", "--limit", "2").stdout.splitlines()
    assert table[0].split() == ["id", "status", "age", "took", "tokens", "prompt"]
    assert table[1].startswith(slow)
    assert table[2].startswith(job)
    assert table[3] == "more can be shown with --limit, --status"
    assert in_process("cancel", slow).stdout == "cancelling\n"
    ended = httpx.get(f"{gateway}/v1/jobs/{slow}", headers={"Prefer": "wait=10"}).json()
    assert ended["status"] == "cancelled"
    assert in_process("cancel", slow).stdout == "cancelled\n"
    assert in_process("cancel", job).stdout == "already ended: succeeded\n"
    listed = json.loads(in_process("jobs", "--status", "cancelled", "--json").stdout)
    assert [job["id"] for job in listed["data"]] == [slow]
    assert in_process("jobs", "--status", "expired").stdout == "no jobs\n"

    bad = in_process("submit", "x fail=worker_fell_over", "--wait", "--json").stdout
    header, row = in_process("jobs", "--status", "failed", "--limit", "1").stdout.splitlines()[:2]
    assert header.split() == ["id", "status", "age", "took", "tokens", "reason", "prompt"]
    assert row.startswith(json.loads(bad)["id"])
    assert "worker_fell_over: as the script says  x fail=" in row
    mixed = in_process("jobs", "--limit", "2").stdout.splitlines()
    assert mixed[0].split() == header.split()
    assert "cancelled" in mixed[2], "which has no reason"


@pytest.mark.stack
def test_refusals_are_one_line(in_process: InProcessCli, gateway: str) -> None:
    in_process.env["MEDUSAQ_URL"] = gateway
    for arguments, message in {
        ("status", "job_x"): "no job with id 'job_x'",
        ("submit", ""): "prompt: string should have at least 1 character",
        ("submit", "x", "--model", "y"): "model: no live worker serves 'y'; known: scripted",
        (
            "submit",
            "x",
            "--decoding",
            "medusa",
        ): "decoding: 'medusa' needs draft heads, and no live worker has any for its model",
        (
            "submit",
            "x",
            "--max-tokens",
            "9999",
        ): "max_tokens: 9999 exceeds the model's context of 2048 tokens",
    }.items():
        ended = in_process(*arguments)
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"error: {message}\n")
    failed = in_process("submit", "so far fail=odd", "--wait")
    assert failed.returncode == 1
    assert failed.stderr.endswith("failed: odd: as the script says\n")


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("numpy", ["models", "list"]),
        ("psutil", ["models", "recommend"]),
        ("psutil", ["up", "--memory", "6GB"]),
    ],
)
def test_what_a_base_install_lacks_is_named_in_one_line(missing: str, arguments: list[str]) -> None:
    program = "import sys; sys.modules[sys.argv.pop(1)] = None; from cli.main import main; main()"
    command = [sys.executable, "-c", program, missing, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(
        f"error: this command needs {missing}: pip install 'medusaq[worker,local]'"
    )
    assert ended.stderr.count("\n") == 1
