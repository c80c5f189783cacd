"""`medusaq run` and `validate` against a real gateway, io worker and model worker; the engine is scripted."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, read_jsonl, texts, write_jsonl
from tests.cli.helpers.runs import COUNT, answers, begun, slow
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack

MOST_LINES = 40  # of a batch, at this gateway
MOST_BYTES = 20_000  # of a line


@pytest.fixture(scope="module")
def served(redis_server: RedisServer) -> Settings:
    return fast_settings(
        redis_server, port=free_port(), max_batch_lines=MOST_LINES, max_body_bytes=MOST_BYTES
    )


def test_results_in_input_order_with_a_summary(in_process: InProcessCli, gateway: str) -> None:
    lines = slow(12, 0.1)
    for line in lines:
        line["prompt"] += " steps=1 drafted=medusa:5:2"
    for line in lines[:6]:
        line["decoding"] = "normal"
    write_jsonl(in_process.folder / "p.jsonl", lines)
    files = httpx.get(f"{gateway}/v1/files").json()["data"]
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--decoding", "auto")
    assert ended.returncode == 0, ended.stderr
    assert texts(in_process.folder / "r.jsonl") == answers(12)
    rows = read_jsonl(in_process.folder / "r.jsonl")
    assert [row["id"] for row in rows] == [f"batch_req_{n + 1}" for n in range(12)]
    assert {row["response"]["body"]["model"] for row in rows} == {"scripted"}
    told = [row["response"]["body"]["speculation"] for row in rows]
    drafts = {"medusa": {"verified": 5, "accepted": 2, "acceptance": 0.4}}
    assert (
        told
        == [{"steps": 3, "tokens_per_step": 1.0, "sources": {}}] * 6
        + [{"steps": 1, "tokens_per_step": 3.0, "sources": drafts}] * 6
    )
    summary = dict(line.split("  ", 1) for line in ended.stdout.splitlines())
    assert float(summary.pop("tokens/s")) > 0
    assert {name: value.strip() for name, value in summary.items()} | {"wall time": ""} == {
        "requests": "12",
        "failures": "0",
        "prompt tokens": "24",
        "generated tokens": "36",
        "tokens/step": "1.50",
        "prefix hit rate": "0%",
        "wall time": "",
        "results": "r.jsonl",
    }
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["p.jsonl", "r.jsonl"]
    assert httpx.get(f"{gateway}/v1/files").json()["data"] == files, "the run's own are gone"


def test_the_first_answers_are_shown_on_request(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(in_process.folder / "p.jsonl", slow(3, 0))
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--show", "2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("id-0: answer 0\nid-1: answer 1\n\nrequests          3\n")


def test_the_summary_counts_cut_answers_and_lines_with_their_own_limit(
    in_process: InProcessCli, gateway: str
) -> None:
    form = {"type": "json_object"}
    lines: list[dict[str, Any]] = [
        {"prompt": "whole"},
        {"prompt": "half an answ cut=1"},
        {"prompt": "half an cut=1", "max_tokens": 7},
        {"prompt": "whole", "max_tokens": 300},
        {"prompt": '{"half": cut=1', "response_format": form},
    ]
    write_jsonl(in_process.folder / "p.jsonl", lines)
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--max-tokens", "9")
    assert ended.returncode == 1
    assert "\nfailures          1 (incomplete 1)\n" in ended.stdout
    assert "\ncut by max_tokens 2\nown max_tokens    2 lines, whose number stood\n" in ended.stdout
    rows = read_jsonl(in_process.folder / "r.jsonl")
    assert (rows[4]["error"]["code"], rows[4]["error"]["partial"]) == ("incomplete", '{"half":')
    ended = in_process("run", "p.jsonl", "-o", "r2.jsonl", "--url", gateway)
    assert "own max_tokens" not in ended.stdout, "nothing was overruled"


def test_finished_results_are_not_overwritten_unless_fresh(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(in_process.folder / "p.jsonl", slow(2, 0))
    (in_process.folder / "r.jsonl").write_text("precious", encoding="utf-8")
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    assert (ended.returncode, ended.stderr) == (2, "error: r.jsonl exists already; --fresh replaces it\n")
    assert (in_process.folder / "r.jsonl").read_text(encoding="utf-8") == "precious"
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--fresh", "--keep")
    assert in_process(*command).returncode == 0
    assert texts(in_process.folder / "r.jsonl") == answers(2)
    assert (in_process.folder / "r.jsonl.run" / "order.jsonl").exists()
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    assert ended.stderr == "error: r.jsonl exists already; --fresh replaces it\n", "what is kept is no run"
    assert in_process(*command[:-1]).returncode == 0
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["p.jsonl", "r.jsonl"]


def test_failures_get_their_line_and_never_stop_the_rest(in_process: InProcessCli, gateway: str) -> None:
    lines = [
        '{"prompt": "good"}',
        '{"prompt": "broken"',
        '{"custom_id": "b", "prompt": "partial fail=worker_fell_over"}',
        '{"custom_id": "c", "prompt": "x", "model": "other"}',
        '{"custom_id": "d", "prompt": "x fail=context_length_exceeded param=prompt"}',
        '{"custom_id": "b", "prompt": "again"}',
        '{"custom_id": "e", "prompt": "x", "top_p": 2}',
        json.dumps({"custom_id": "f", "prompt": "x" * MOST_BYTES}),
        '{"custom_id": "g", "prompt": "last"}',
    ]
    (in_process.folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    assert ended.returncode == 1
    assert "3 of 9 requests are invalid" in ended.stderr
    rows = read_jsonl(in_process.folder / "r.jsonl")
    good, broken, failed, unknown, long, twice, wrong, large, last = rows
    assert [row["id"] for row in rows] == [f"batch_req_{n + 1}" for n in range(9)]
    assert good["response"]["body"]["choices"][0]["message"]["content"] == "good"
    assert (broken["error"]["code"], broken["error"]["line"]) == ("invalid_json_line", 2)
    assert (failed["error"]["code"], failed["error"]["line"]) == ("worker_fell_over", 3)
    assert unknown["response"]["status_code"] == 404
    assert unknown["response"]["body"]["error"]["code"] == "model_not_found"
    assert long["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert long["response"]["body"]["error"]["param"] == "prompt"
    assert (twice["error"]["code"], twice["error"]["line"]) == ("duplicate_custom_id", 6)
    assert wrong["error"]["param"] == "top_p"
    assert (large["custom_id"], large["error"]["code"], large["error"]["line"]) == ("f", "line_too_long", 8)
    assert last["response"]["body"]["choices"][0]["message"]["content"] == "last"
    assert "failures          7 (" in ended.stdout


def test_a_part_without_a_line_that_the_gateway_takes_has_its_failures(
    in_process: InProcessCli, gateway: str
) -> None:
    write_jsonl(in_process.folder / "p.jsonl", [{"prompt": "x" * MOST_BYTES}])
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    assert (ended.returncode, "error:" in ended.stderr) == (1, False)
    (row,) = read_jsonl(in_process.folder / "r.jsonl")
    assert (row["error"]["code"], row["error"]["line"]) == ("line_too_long", 1)


def test_a_line_that_runs_when_its_batch_is_cancelled_keeps_its_partial_text(
    cli: Cli, gateway: str, served: Settings
) -> None:
    write_jsonl(cli.folder / "p.jsonl", [{"custom_id": "slow", "prompt": "so far delay=30 tokens=9"}])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    store = JobStore(served)

    def runs() -> bool:
        windows = store.db.redis.scan_iter(f"{store.db.prefix}win:*")
        return any(int(store.db.redis.hget(window, "opened") or 0) for window in windows)

    wait_until(runs)
    store.close()
    [batch] = [
        each for each in httpx.get(f"{gateway}/v1/batches").json()["data"] if each["status"] == "in_progress"
    ]
    assert cli("batches", "cancel", batch["id"], "--url", gateway).stdout == "cancelling\n"
    assert running.wait() == 1
    (line,) = read_jsonl(cli.folder / "r.jsonl")
    assert (line["error"]["code"], line["error"]["partial"]) == ("batch_cancelled", "so far")


def test_a_batch_that_somebody_cancels_ends_the_run_with_what_there_is(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(4) + slow(COUNT, 60)[4:])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    (batch,) = begun(cli, running, gateway).batches()
    assert cli("batches", "cancel", batch["id"], "--url", gateway).stdout == "cancelling\n"
    assert running.wait() == 1
    rows = read_jsonl(cli.folder / "r.jsonl")
    assert [row["custom_id"] for row in rows] == [f"id-{n}" for n in range(COUNT)]
    assert {row["error"]["code"] for row in rows if row["error"]} == {"batch_cancelled"}
    assert rows[0]["error"] is None
    assert [row["error"]["line"] for row in rows if row["error"]][-1] == COUNT


def test_text_json_lines_and_standard_input(cli: Cli, in_process: InProcessCli, gateway: str) -> None:
    (in_process.folder / "t.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    url = ("--url", gateway, "-o")
    assert in_process("run", "t.txt", *url, "t.jsonl").returncode == 0
    assert texts(in_process.folder / "t.jsonl") == [("line-1", "one"), ("line-3", "two")]
    assert cli("run", "-", *url, "s.jsonl", stdin=b'{"prompt": "piped"}\n').returncode == 0
    assert texts(in_process.folder / "s.jsonl") == [("line-1", "piped")]
    assert in_process("run", "t.txt", "--raw", *url, "raw.jsonl").returncode == 0
    assert [line["response"]["body"]["object"] for line in read_jsonl(in_process.folder / "raw.jsonl")] == [
        "text_completion"
    ] * 2


def test_a_part_that_cannot_be_run_says_why_and_is_tried_again(
    in_process: InProcessCli, gateway: str
) -> None:
    write_jsonl(in_process.folder / "p.jsonl", slow(MOST_LINES + 1, 0))
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    for _ in range(2):
        ended = in_process(*command)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-2:] == [
            f"0 of {MOST_LINES + 1} requests are done; repeat the same command to go on",
            "error: the gateway could not run part 1: "
            f"the file holds more than {MOST_LINES} lines, blank ones counted too",
        ]


def test_a_run_says_that_the_machine_is_measured_first(
    in_process: InProcessCli, gateway: str, served: Settings
) -> None:
    def said() -> bool:
        ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--fresh", "--url", gateway)
        assert ended.returncode == 0, ended.stderr
        return "a worker measures first" in ended.stderr

    write_jsonl(in_process.folder / "p.jsonl", slow(1, 0))
    store = JobStore(served)
    registry = Registry(store.db, 60)
    new = WorkerInfo("new", "scripted", 8, 1, 1, "h", 0.0, {"measuring": True}, {"steps_total": 0})
    assert not said()
    try:
        registry.refresh(new)
        assert said()
        registry.refresh(replace(new, metrics={"steps_total": 1}))
        assert not said()
    finally:
        registry.leave("new")
        store.close()


def test_no_gateway_at_all(in_process: InProcessCli) -> None:
    write_jsonl(in_process.folder / "p.jsonl", slow(1))
    url = f"http://127.0.0.1:{free_port()}"
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", url, "--patience", "0.5")
    assert ended.returncode == 4
    assert ended.stderr.endswith(f"error: no answer from the gateway at {url} for 0 s: connection refused\n")
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["p.jsonl"], "nothing was sent"


def test_what_is_no_gateway_is_said_so(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(in_process.folder / "p.jsonl", slow(1))
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", f"{gateway}/elsewhere")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "error: Not Found")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope.jsonl", "-o", "r.jsonl"), "cannot read nope.jsonl: No such file or directory"),
        (("none", "-o", "r.jsonl"), "cannot read none: No such file or directory"),
        (("empty", "-o", "r.jsonl"), "the input has no prompts"),
        (
            ("bad.jsonl", "-o", "r.jsonl"),
            "none of the 1 requests is valid: line 1: not valid JSON: Expecting value (column 1); "
            "`medusaq validate bad.jsonl` lists all problems",
        ),
        (("p.txt", "-o", "no/folder/r.jsonl"), "the folder no/folder does not exist"),
        (("p.txt", "-o", "."), ". is a folder; -o names the file to write"),
        (("p.txt", "-o", "-"), "-o must name a file: an unfinished run is kept beside it"),
        (
            ("p.txt", "-o", "r.jsonl", "--max-tokens", "-1"),
            "--max-tokens: input should be greater than or equal to 1",
        ),
        (
            ("p.txt", "-o", "r.jsonl", "--url", "localhost:1"),
            "--url 'localhost:1': must look like http://127.0.0.1:7860",
        ),
        (
            ("p.txt", "-o", "r.jsonl", "--column", "x", "--format", "text"),
            "--column: there is no column 'x'; the columns are 'prompt'",
        ),
        (
            ("twice.csv", "-o", "r.csv", "--column", "p", "--id", "k"),
            "--id k: row 3: custom_id: '1' is also that of row 1: "
            "name a column whose values differ, or leave --id out",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    in_process: InProcessCli, arguments: tuple[str, ...], message: str
) -> None:
    (in_process.folder / "p.txt").write_text("x\n", encoding="utf-8")
    (in_process.folder / "bad.jsonl").write_text("x\n", encoding="utf-8")
    (in_process.folder / "empty").touch()
    (in_process.folder / "twice.csv").write_text("k,p\n1,a\n2,b\n1,c\n", encoding="utf-8")
    for dry in ((), ("--dry-run",)):
        ended = in_process("run", *arguments, *dry)
        [*said, error] = ended.stderr.splitlines()
        assert (ended.returncode, ended.stdout, error) == (2, "", f"error: {message}")
        assert said in ([], ["twice.csv: CSV, separated by commas"])
        left = ["bad.jsonl", "empty", "p.txt", "twice.csv"]
        assert sorted(path.name for path in in_process.folder.iterdir()) == left


@pytest.mark.parametrize(
    "options",
    [
        ["--template-file", "the template.txt", "--id", "k"],
        ["--template", "{{ p + 1 }} it's", "--system", "{{ k }}", "--format", "csv"],
        ["--column", "empty"],
    ],
)
def test_the_advised_command_works_word_for_word(
    in_process: InProcessCli, gateway: str, options: list[str]
) -> None:
    """As a shell reads it."""
    (in_process.folder / "a table.csv").write_text("k,p,empty\n1,a,\n2,b,\n", encoding="utf-8")
    (in_process.folder / "the template.txt").write_text("two\nlines {{ p + 1 }}", encoding="utf-8")
    for command in (("--dry-run",), ("--url", gateway)):
        refused = in_process("run", "a table.csv", "-o", "o.csv", *options, *command)
        assert refused.returncode == 2
        advised = re.search(r": row 1: .*; `(.*)` lists all problems\n$", refused.stderr)
        assert advised is not None, refused.stderr
        program, *words = shlex.split(advised[1])
        listed = in_process(*words)
        assert (program, listed.returncode, listed.stderr) == ("medusaq", 2, "")
        assert "row 2: " in listed.stdout


def test_of_what_came_from_a_pipe_the_first_problem_is_told(cli: Cli) -> None:
    refused = cli("run", "-", "-o", "r.jsonl", "--url", "http://127.0.0.1:9", stdin=b"{}\n{}\n")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: none of the 2 requests is valid: line 1: ")
    assert "medusaq validate" not in refused.stderr


def test_a_model_that_is_not_there_is_said_before_anything_begins(in_process: InProcessCli) -> None:
    (in_process.folder / "p.jsonl").write_text('{"prompt": "x"}\nbroken\n', encoding="utf-8")
    for model, message in {
        "none.gguf": "none.gguf: no such file",
        "nobody": "'nobody' is neither a file nor the name of a model; ",
    }.items():
        ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--model", model)
        assert ended.returncode == 3
        [line] = ended.stderr.splitlines()
        assert line.startswith(f"error: {message}")
    assert [path.name for path in in_process.folder.iterdir()] == ["p.jsonl"]


def test_validate_says_line_by_line_what_is_wrong(cli: Cli, in_process: InProcessCli) -> None:
    lines = ['{"prompt": "x"}', '{"prompt": "", "seed": -1}', "", "[]", '{"prompt": "y"}']
    (in_process.folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    ended = in_process("validate", "p.jsonl")
    assert ended.returncode == 2
    assert ended.stdout.splitlines() == [
        "line 2: prompt: string should have at least 1 character",
        "line 2: seed: input should be greater than or equal to 0",
        "line 4: must be a JSON object, one on each line",
        "2 good, 2 bad; format: jsonl",
    ]
    good = cli("validate", "-", stdin=b"one\ntwo\n")
    assert (good.returncode, good.stdout) == (0, "2 good, 0 bad; format: text\n")
