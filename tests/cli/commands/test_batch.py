"""`medusaq batches` against a real gateway, io worker and model worker; the engine is scripted."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.records.batch import ENDED
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, read_jsonl, texts, write_jsonl
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack


def line(number: int, content: str = "hello") -> dict[str, Any]:
    body = {"model": "scripted", "messages": [{"role": "user", "content": content}]}
    return {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def raw(number: int, prompt: str = "hello") -> dict[str, Any]:
    return {**line(number), "url": "/v1/completions", "body": {"prompt": prompt}}


@pytest.fixture
def cli(cli: Cli, gateway: str) -> Cli:
    cli.env["MEDUSAQ_URL"] = gateway
    return cli


def shown(text: str) -> dict[str, str]:
    """Rows of `batches show` by their names."""
    return {row[:15].rstrip(): row[15:] for row in text.splitlines()}


def ids(path: Path) -> list[str]:
    return [row["custom_id"] for row in read_jsonl(path)]


def test_a_batch_from_its_file_to_its_results(in_process: InProcessCli) -> None:
    lines = [line(n, f"number {n} tokens=3" + (" fail=boom" if n % 5 == 4 else "")) for n in range(12)]
    write_jsonl(in_process.folder / "lines.jsonl", lines)
    command = ("batches", "create", "lines.jsonl", "--priority", "3", "--deadline-hours", "2")
    ended = in_process(*command, "-o", "good.jsonl", "--errors", "bad.jsonl")
    assert ended.returncode == 1, ended.stderr
    assert ids(in_process.folder / "good.jsonl") == [f"id-{n}" for n in range(12) if n % 5 != 4]
    assert ids(in_process.folder / "bad.jsonl") == ["id-4", "id-9"]
    rows = shown(ended.stdout)
    assert (rows["status"], rows["lines"], rows["done"], rows["failed"]) == ("completed", "12", "10", "2")
    assert rows["tokens"] == "20 in (0 cached), 30 out"
    assert (rows["endpoint"], rows["priority"]) == ("/v1/chat/completions", "3")
    assert rows["failures"] == "2 boom"
    assert sorted(path.name for path in in_process.folder.iterdir()) == [
        "bad.jsonl",
        "good.jsonl",
        "lines.jsonl",
    ]

    again = in_process("batches", "show", rows["id"])
    assert (again.returncode, again.stdout) == (0, ended.stdout)
    record = json.loads(in_process("batches", "show", rows["id"], "--json").stdout)
    assert (record["id"], record["request_counts"]["completed"]) == (rows["id"], 10)
    assert 7100 < record["expires_at"] - record["created_at"] < 7300


def test_an_id_alone_and_then_everything_by_it(in_process: InProcessCli) -> None:
    write_jsonl(in_process.folder / "lines.jsonl", [raw(n, f"answer {n} delay=0.1") for n in range(6)])
    made = in_process("batches", "create", "lines.jsonl")
    batch = made.stdout.strip()
    assert (made.returncode, made.stderr) == (0, "")
    assert re.fullmatch(r"batch_[0-9a-f]{32}", batch)
    watched = in_process("batches", "show", batch, "--watch")
    rows = shown(watched.stdout)
    assert (watched.returncode, rows["status"], rows["endpoint"]) == (0, "completed", "/v1/completions")

    printed = in_process("batches", "download", batch)
    assert [json.loads(row)["custom_id"] for row in printed.stdout.splitlines()] == [
        f"id-{n}" for n in range(6)
    ]
    nothing = in_process("batches", "download", batch, "-o", "a.jsonl", "--errors", "b.jsonl")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert ids(in_process.folder / "a.jsonl") == [f"id-{n}" for n in range(6)]
    assert (in_process.folder / "b.jsonl").read_bytes() == b""

    table = in_process("batches", "list", "--limit", "1").stdout.splitlines()
    assert table[0].split() == ["id", "status", "age", "took", "done", "failed", "tokens"]
    assert table[1].split()[:2] == [batch, "completed"]
    assert table[1].split()[-5:] == ["6", "of", "6", "0", "6"]
    assert table[2] == "more can be shown with --limit"
    listed = json.loads(in_process("batches", "list", "--json", "--limit", "1").stdout)
    assert [entry["id"] for entry in listed["data"]] == [batch]


def test_jobs_of_ours_and_the_endpoint_by_name(in_process: InProcessCli) -> None:
    ours = {"custom_id": "x", "method": "POST", "url": "/v1/jobs", "body": {"prompt": "hi", "raw": True}}
    write_jsonl(in_process.folder / "lines.jsonl", [ours])
    assert in_process("batches", "create", "lines.jsonl", "--watch").returncode == 0
    ended = in_process("batches", "create", "lines.jsonl", "--endpoint", "/v1/completions", "--watch")
    assert ended.returncode == 1
    assert shown(ended.stdout)["line 1"] == "url: the batch is for /v1/completions"


@pytest.mark.parametrize("endpoint", [(), ("--endpoint", "/v1/chat/completions")])
def test_the_lines_of_run_are_those_of_a_batch(in_process: InProcessCli, endpoint: tuple[str, ...]) -> None:
    said = [{"role": "user", "content": "hello"}]
    lines = [{"messages": said}, {"prompt": "hi", "custom_id": "mine"}, {"prompt": "hi", "raw": True}]
    write_jsonl(in_process.folder / "lines.jsonl", lines)
    assert in_process("validate", "lines.jsonl").returncode == 0
    ended = in_process("batches", "create", "lines.jsonl", *endpoint, "-o", "good.jsonl")
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert shown(ended.stdout)["endpoint"] == (endpoint or ("", "/v1/jobs"))[1]
    assert ids(in_process.folder / "good.jsonl") == ["line-1", "mine", "line-3"]
    kinds = [row["response"]["body"]["object"] for row in read_jsonl(in_process.folder / "good.jsonl")]
    assert kinds == ["chat.completion", "chat.completion", "text_completion"]


def test_a_dry_run_says_what_is_wrong_and_sends_nothing(in_process: InProcessCli) -> None:
    content = "\n".join(
        [json.dumps(line(1)), "{", json.dumps({**line(3), "method": "GET"}), json.dumps(line(4))]
    )
    (in_process.folder / "lines.jsonl").write_text("\ufeff" + content, encoding="utf-8")
    ended = in_process("batches", "create", "lines.jsonl", "--dry-run")
    assert ended.returncode == 1
    rows = shown(ended.stdout)
    assert (rows["status"], rows["lines"]) == ("completed, a dry run", "4")
    assert (rows["done"], rows["failed"], rows["output file"]) == ("0", "2", "-")
    assert rows["line 2"].startswith("not valid JSON")
    assert rows["line 3"] == 'method: must be "POST"'
    write_jsonl(in_process.folder / "lines.jsonl", [line(1)])
    assert in_process("batches", "create", "lines.jsonl", "--dry-run").returncode == 0


def test_a_file_that_is_no_batch(in_process: InProcessCli) -> None:
    (in_process.folder / "lines.zip").write_bytes(b"PK\x03\x04 and so on")
    ended = in_process("batches", "create", "lines.zip", "--watch", "-o", "good.jsonl")
    assert ended.returncode == 1
    rows = shown(ended.stdout)
    assert rows["status"] == "failed"
    assert "the file is a zip archive, not JSON lines" in ended.stdout
    assert (in_process.folder / "good.jsonl").read_bytes() == b""


def test_a_file_without_a_valid_line(in_process: InProcessCli) -> None:
    (in_process.folder / "lines.jsonl").write_text("{\n[]\n", encoding="utf-8")
    ended = in_process("batches", "create", "lines.jsonl", "--watch", "--errors", "bad.jsonl")
    assert ended.returncode == 1
    rows = shown(ended.stdout)
    assert (rows["status"], rows["failed"]) == ("failed", "2")
    assert rows["line 1"].startswith("not valid JSON")
    assert [row["error"]["line"] for row in read_jsonl(in_process.folder / "bad.jsonl")] == [1, 2]


def test_files_that_are_gone_are_not_offered(in_process: InProcessCli, gateway: str) -> None:
    prompts = ("whole", "half an answ cut=1", "x fail=boom")
    write_jsonl(in_process.folder / "p.jsonl", [{"prompt": prompt} for prompt in prompts])
    assert in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway).returncode == 1
    newest = json.loads(in_process("batches", "list", "--json", "--limit", "1").stdout)["data"][0]
    rows = shown(in_process("batches", "show", newest["id"]).stdout)
    for name in ("input", "output", "error"):
        assert rows[f"{name} file"] == f"{newest[f'{name}_file_id']} (deleted)"
    assert rows["cut"] == "1 by max_tokens"
    write_jsonl(in_process.folder / "lines.jsonl", [raw(1)])
    kept = shown(in_process("batches", "create", "lines.jsonl", "--watch").stdout)
    assert "(deleted)" not in kept["input file"] + kept["output file"]
    assert "cut" not in kept


LINES = 900  # more than a worker is sent at once


def test_cancelling(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(in_process.folder / "lines.jsonl", [raw(n, "x delay=1") for n in range(LINES)])
    batch = in_process("batches", "create", "lines.jsonl").stdout.strip()
    path = f"{gateway}/v1/batches/{batch}"
    wait_until(lambda: httpx.get(path).json()["request_counts"]["completed"] > 0)
    assert in_process("batches", "cancel", batch).stdout == "cancelling\n"
    ended = in_process("batches", "show", batch, "-w")
    rows = shown(ended.stdout)
    assert (rows["status"], rows["lines"]) == ("cancelled", str(LINES))
    assert (rows["failed"], int(rows["cancelled"])) == ("0", LINES - int(rows["done"]))
    assert not {"failures", "never sent", "expired"} & rows.keys()
    assert in_process("batches", "cancel", batch).stdout == "cancelled\n"
    assert in_process("batches", "download", batch, "-o", "a", "--errors", "b").returncode == 0
    assert sorted(ids(in_process.folder / "a") + ids(in_process.folder / "b")) == sorted(
        f"id-{n}" for n in range(LINES)
    )


def test_running_only_what_failed_again(in_process: InProcessCli) -> None:
    lines = [raw(n, "x fail=boom" if n in (2, 5) else "x") for n in range(7)]
    write_jsonl(in_process.folder / "lines.jsonl", lines)
    first = shown(in_process("batches", "create", "lines.jsonl", "--watch").stdout)["id"]
    ended = in_process("batches", "retry", first, "--watch", "--errors", "again.jsonl")
    assert ended.returncode == 1
    rows = shown(ended.stdout)
    assert (rows["lines"], rows["retry of"]) == ("2", first)
    assert ids(in_process.folder / "again.jsonl") == ["id-2", "id-5"]
    made = in_process("batches", "retry", first)
    assert made.stdout.startswith("batch_")
    write_jsonl(in_process.folder / "lines.jsonl", [raw(1)])
    good = shown(in_process("batches", "create", "lines.jsonl", "--watch").stdout)["id"]
    refused = in_process("batches", "retry", good)
    assert (refused.returncode, refused.stderr) == (1, f"error: no line of {good} failed\n")


def test_running_what_was_cut_off_again_with_more_tokens(in_process: InProcessCli) -> None:
    asked = line(1, 'needs=300 {"a":1}')
    asked["body"]["response_format"] = {"type": "json_object"}
    write_jsonl(in_process.folder / "lines.jsonl", [asked])
    first = shown(in_process("batches", "create", "lines.jsonl", "--watch").stdout)
    assert first["failures"] == "1 incomplete"
    again = in_process("batches", "retry", first["id"], "--max-tokens", "999", "--watch", "-o", "more.jsonl")
    assert (again.returncode, shown(again.stdout)["max_tokens"]) == (0, "999")
    assert texts(in_process.folder / "more.jsonl") == [("id-1", '{"a":1}')]
    refused = in_process("batches", "retry", first["id"], "--max-tokens", "0")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_what_has_come_so_far_can_be_read(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(
        in_process.folder / "lines.jsonl",
        [raw(n, "x delay=0.5" if n < 8 else "x delay=60") for n in range(80)],
    )
    batch = in_process("batches", "create", "lines.jsonl").stdout.strip()
    output = f"{gateway}/v1/batches/{batch}/output"
    wait_until(lambda: bool(httpx.get(output).content))
    assert in_process("batches", "download", batch, "-o", "part.jsonl").returncode == 0
    found = ids(in_process.folder / "part.jsonl")
    assert 0 < len(found) < 80
    refused = in_process("batches", "retry", batch)
    assert refused.stderr == f"error: {batch} is in_progress: only a batch that has ended can be retried\n"
    in_process("batches", "cancel", batch)


def test_watching_is_interrupted_and_the_batch_goes_on(
    cli: Cli, in_process: InProcessCli, gateway: str
) -> None:
    write_jsonl(cli.folder / "lines.jsonl", [raw(n, "x delay=60") for n in range(40)])
    running = cli.start("batches", "create", "lines.jsonl", "--watch")

    def newest() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{gateway}/v1/batches").json()["data"][0]
        return found

    wait_until(lambda: newest()["request_counts"]["total"] == 40 and newest()["status"] == "in_progress")
    running.send(signal.SIGINT)
    assert running.wait() == 130
    batch = newest()
    assert running.lines[-1] == f"the batch continues: medusaq batches show {batch['id']} --watch"
    assert batch["status"] not in ENDED
    in_process("batches", "cancel", batch["id"])


def test_progress_is_shown_while_a_batch_runs(cli: Cli) -> None:
    write_jsonl(cli.folder / "lines.jsonl", [raw(n, "x delay=2") for n in range(16)])
    running = cli.start("batches", "create", "lines.jsonl", "--watch")
    assert running.wait() == 0
    assert re.search(r"^\d+/16  \d+ running  .*tokens, .*/s", running.text(), re.MULTILINE), running.text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "none.jsonl"), 2, "cannot read none.jsonl: No such file or directory"),
        (("create", "."), 2, "cannot read .: Is a directory"),
        (("create", "l.jsonl", "-o", "."), 2, "-o: . is a folder"),
        (
            ("create", "l.jsonl", "--errors", "no/where"),
            2,
            "--errors: the folder no does not exist",
        ),
        (
            ("create", "l.jsonl", "--endpoint", "/v1/embeddings"),
            1,
            "endpoint: input should be '/v1/chat/completions', '/v1/completions', '/v1/responses' "
            "or '/v1/jobs'",
        ),
        (
            ("create", "l.jsonl", "--deadline-hours", "-1"),
            1,
            "deadline: must be in the future, in Unix seconds",
        ),
        (
            ("create", "t.csv"),
            2,
            "t.csv is a table: `medusaq run` sends a prompt for each of its rows",
        ),
        (("show", "batch_x"), 1, "no batch with id 'batch_x'"),
        (("cancel", "batch_x"), 1, "no batch with id 'batch_x'"),
        (("retry", "batch_x"), 1, "no batch with id 'batch_x'"),
        (("download", "batch_x", "-o", "out"), 1, "no batch with id 'batch_x'"),
        (("show", "\udcff"), 2, "an argument is not UTF-8"),
    ],
)
def test_slips_are_one_line(
    in_process: InProcessCli, arguments: tuple[str, ...], code: int, message: str
) -> None:
    write_jsonl(in_process.folder / "l.jsonl", [line(1)])
    ended = in_process("batches", *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"error: {message}\n")
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["l.jsonl"]


def test_a_full_disk_leaves_what_was_there(cli: Cli, in_process: InProcessCli) -> None:
    write_jsonl(cli.folder / "lines.jsonl", [raw(n) for n in range(40)])
    batch = shown(in_process("batches", "create", "lines.jsonl", "--watch").stdout)["id"]
    (cli.folder / "out").write_text("before", encoding="utf-8")
    ended = cli("batches", "download", batch, "-o", "out", file_kb=4)
    assert (ended.returncode, ended.stderr) == (1, "error: cannot write out: File too large\n")
    assert (cli.folder / "out").read_text(encoding="utf-8") == "before"
    assert sorted(path.name for path in cli.folder.iterdir()) == ["lines.jsonl", "out"]
    assert in_process("batches", "download", batch, "-o", "/dev/null").returncode == 0
    assert Path("/dev/null").is_char_device()
