"""`medusaq run` and `validate` against a real gateway and worker; the engine is scripted."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.settings import Settings
from tests.cli.support import Cli, Running, read_jsonl, texts, write_jsonl
from tests.servers import free_port
from tests.workers import wait_until

pytestmark = pytest.mark.stack
COUNT = 24


def slow(count: int, delay: float = 0.2) -> list[dict[str, Any]]:
    return [{"custom_id": f"id-{n}", "prompt": f"answer {n} delay={delay} tokens=3"} for n in range(count)]


def journal(results: Path) -> Path:
    return results.with_name(results.name + ".run") / "journal.jsonl"


def journaled(results: Path) -> int:
    """How many results the journal holds by now."""
    try:
        return journal(results).read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return -1


def jobs_of(gateway: str, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params: dict[str, str] = {"metadata[run]": run_id, "limit": "100"}
    while True:
        page = httpx.get(f"{gateway}/v1/jobs", params=params).raise_for_status().json()
        found += page["data"]
        if not page["has_more"]:
            return found
        params["after"] = page["last_id"]


def test_results_in_input_order_with_a_summary(cli: Cli, gateway: str) -> None:
    lines = slow(12, 0.1)
    for line in lines:
        line["prompt"] += " steps=1 drafted=medusa:5:2"
    for line in lines[:6]:
        line["decoding"] = "normal"
    write_jsonl(cli.folder / "p.jsonl", lines)
    ended = cli("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--decoding", "auto")
    assert ended.returncode == 0, ended.stderr
    assert texts(cli.folder / "r.jsonl") == [(f"id-{n}", f"answer {n}") for n in range(12)]
    told = [line["response"]["body"]["speculation"] for line in read_jsonl(cli.folder / "r.jsonl")]
    drafts = {"medusa": {"verified": 5, "accepted": 2, "acceptance": 0.4}}
    assert (
        told
        == [{"steps": 3, "tokens_per_step": 1.0, "sources": {}}] * 6
        + [{"steps": 1, "tokens_per_step": 3.0, "sources": drafts}] * 6
    )
    summary = dict(line.split("  ", 1) for line in ended.stdout.splitlines())
    assert {name: value.strip() for name, value in summary.items() if name.strip() != "tokens/s"} | {
        "wall time": ""
    } == {
        "requests": "12",
        "failures": "0",
        "prompt tokens": "24",
        "generated tokens": "36",
        "tokens/step": "1.50",
        "prefix hit rate": "0%",
        "wall time": "",
        "results": "r.jsonl",
    }
    assert sorted(path.name for path in cli.folder.iterdir()) == ["p.jsonl", "r.jsonl"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_run_killed_at_any_point_goes_on(cli: Cli, gateway: str, torn: bool) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT))
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--concurrency", "4")
    results = cli.folder / "r.jsonl"
    running = cli.start(*command)
    wait_until(lambda: journaled(results) >= 6, 20, alive=lambda: running.process.poll() is None)
    running.send(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    done = journaled(results)
    assert 6 <= done < COUNT
    assert not results.exists()
    if torn:
        data = journal(results).read_bytes()
        journal(results).write_bytes(data[:-25])
        done -= 1
    run_id = json.loads(journal(results).read_bytes().splitlines()[0])["run"]

    ended = cli(*command)
    assert ended.returncode == 0, ended.stderr
    assert f"going on: {done} of {COUNT} requests are done already" in ended.stderr
    assert texts(results) == [(f"id-{n}", f"answer {n}") for n in range(COUNT)]
    assert not journal(results).parent.exists()
    sent = Counter(job["metadata"]["custom_id"] for job in jobs_of(gateway, run_id))
    assert sent == Counter(f"id-{n}" for n in range(COUNT)), "a job was sent twice, or not at all"

    assert cli("run", "p.jsonl", "-o", "whole.jsonl", "--url", gateway).returncode == 0
    assert texts(cli.folder / "whole.jsonl") == texts(results)


def interrupt(running: Running, results: Path, signum: int) -> int:
    wait_until(lambda: journaled(results) >= 3, 20, alive=lambda: running.process.poll() is None)
    running.send(signum)
    return running.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on(cli: Cli, gateway: str, signum: int) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT))
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--concurrency", "4")
    running = cli.start(*command)
    assert interrupt(running, cli.folder / "r.jsonl", signum) == 128 + signum
    assert "requests are done; repeat the same command to go on" in running.lines[-2]
    assert running.lines[-1] == "interrupted"
    assert cli(*command).returncode == 0
    assert len(texts(cli.folder / "r.jsonl")) == COUNT


def test_a_changed_input_or_option_is_refused_until_fresh(cli: Cli, gateway: str) -> None:
    source = write_jsonl(cli.folder / "p.jsonl", slow(COUNT))
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--concurrency", "4")
    assert interrupt(cli.start(*command), cli.folder / "r.jsonl", signal.SIGINT) == 130
    ended = cli(*command, "--max-tokens", "9")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "error: r.jsonl.run was begun with other options (max_tokens was null); "
        "repeat those, or use --fresh\n"
    )
    write_jsonl(source, slow(2, 0))
    ended = cli(*command)
    assert ended.returncode == 2
    assert (
        ended.stderr == "error: the input has changed since r.jsonl.run was begun; start over with --fresh\n"
    )
    assert cli(*command, "--fresh").returncode == 0
    assert len(texts(cli.folder / "r.jsonl")) == 2


def test_finished_results_are_not_overwritten_unless_fresh(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(2, 0))
    (cli.folder / "r.jsonl").write_text("precious", encoding="utf-8")
    ended = cli("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    assert (ended.returncode, ended.stderr) == (1, "error: r.jsonl exists already; --fresh replaces it\n")
    assert (cli.folder / "r.jsonl").read_text(encoding="utf-8") == "precious"
    assert cli("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--fresh").returncode == 0
    assert len(texts(cli.folder / "r.jsonl")) == 2


def test_failures_get_their_line_and_never_stop_the_rest(cli: Cli, gateway: str) -> None:
    lines = [
        '{"prompt": "good"}',
        '{"prompt": "broken"',
        '{"custom_id": "b", "prompt": "partial fail=worker_fell_over"}',
        '{"custom_id": "c", "prompt": "x", "model": "other"}',
        '{"custom_id": "d", "prompt": "x", "max_tokens": 99999}',
        '{"custom_id": "b", "prompt": "again"}',
        '{"custom_id": "e", "prompt": "x", "top_p": 2}',
    ]
    (cli.folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    ended = cli("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    assert ended.returncode == 1
    assert "3 of 7 requests are invalid" in ended.stderr
    good, broken, failed, unknown, long, twice, wrong = read_jsonl(cli.folder / "r.jsonl")
    assert good["response"]["body"]["choices"][0]["message"]["content"] == "good"
    assert (broken["error"]["code"], broken["error"]["line"]) == ("invalid_json_line", 2)
    assert failed["error"]["code"] == "worker_fell_over"
    assert unknown["response"]["status_code"] == 404
    assert unknown["response"]["body"]["error"]["code"] == "model_not_found"
    assert (long["response"]["status_code"], long["response"]["body"]["error"]["param"]) == (
        400,
        "max_tokens",
    )
    assert (twice["error"]["code"], twice["error"]["line"]) == ("duplicate_custom_id", 6)
    assert wrong["error"]["param"] == "top_p"
    assert "failures          6 (" in ended.stdout


def test_cancelled_and_expired_jobs_keep_their_partial_text(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", [{"custom_id": "slow", "prompt": "so far delay=30 tokens=9"}])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)

    def job() -> dict[str, Any] | None:
        page = httpx.get(f"{gateway}/v1/jobs", params={"status": "running"}).json()["data"]
        return next((j for j in page if j["metadata"].get("custom_id") == "slow"), None)

    wait_until(lambda: job() is not None)
    found = job()
    assert found is not None
    assert cli("cancel", found["id"], "--url", gateway).stdout == "cancelling\n"
    assert running.wait() == 1
    (line,) = read_jsonl(cli.folder / "r.jsonl")
    assert (line["error"]["code"], line["error"]["partial"]) == ("job_cancelled", "so far")


def test_every_format_and_standard_input(cli: Cli, gateway: str) -> None:
    (cli.folder / "t.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    (cli.folder / "c.csv").write_text('q,custom_id\n"a, b",x\nc,y\n', encoding="utf-8")
    url = ("--url", gateway, "-o")
    assert cli("run", "t.txt", *url, "t.out").returncode == 0
    assert texts(cli.folder / "t.out") == [("line-1", "one"), ("line-3", "two")]
    assert cli("run", "c.csv", "--column", "q", *url, "c.out").returncode == 0
    assert texts(cli.folder / "c.out") == [("x", "a, b"), ("y", "c")]
    assert cli("run", "-", *url, "s.out", stdin=b'{"prompt": "piped"}\n').returncode == 0
    assert texts(cli.folder / "s.out") == [("line-1", "piped")]
    assert cli("run", "t.txt", "--raw", *url, "raw.out").returncode == 0
    assert [line["response"]["body"]["object"] for line in read_jsonl(cli.folder / "raw.out")] == [
        "text_completion"
    ] * 2


def another_gateway(cli: Cli, served: Settings, port: int) -> Running:
    """A second one on the same Redis, so that it can be killed."""
    where = {"MEDUSAQ_REDIS_URL": served.redis_url, "MEDUSAQ_KEY_PREFIX": served.key_prefix}
    running = cli.start("gateway", MEDUSAQ_PORT=str(port), **where)
    running.wait_for("Uvicorn running")
    return running


@pytest.mark.usefixtures("gateway")
def test_a_gateway_that_comes_back_is_waited_for(cli: Cli, served: Settings) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT))
    port = free_port()
    first = another_gateway(cli, served, port)
    url = f"http://127.0.0.1:{port}"
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", "--url", url, "--concurrency", "4")
    wait_until(lambda: journaled(cli.folder / "r.jsonl") >= 4, 20)
    first.send(signal.SIGKILL)
    first.wait()
    another_gateway(cli, served, port)
    assert running.wait() == 0, running.text()
    assert texts(cli.folder / "r.jsonl") == [(f"id-{n}", f"answer {n}") for n in range(COUNT)]


def test_a_gateway_that_stays_away_is_given_up(cli: Cli, served: Settings, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT))
    port = free_port()
    first = another_gateway(cli, served, port)
    url = f"http://127.0.0.1:{port}"
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--concurrency", "4", "--url")
    running = cli.start(*command, url, "--patience", "1")
    wait_until(lambda: journaled(cli.folder / "r.jsonl") >= 4, 20)
    first.send(signal.SIGKILL)
    assert running.wait() == 4
    assert "requests are done; repeat the same command to go on" in running.lines[-2]
    assert running.lines[-1].startswith(f"error: no answer from the gateway at {url} for 1 s")
    assert cli(*command, gateway).returncode == 0
    assert len(texts(cli.folder / "r.jsonl")) == COUNT


def test_a_full_disk_ends_the_run_which_goes_on_once_there_is_room(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT, 0.3))
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--concurrency", "4", "--url", gateway)
    ended = cli(*command, file_kb=6)
    assert ended.returncode == 1
    *_, said, error = ended.stderr.splitlines()
    assert said.endswith(f"of {COUNT} requests are done; repeat the same command to go on")
    assert error == "error: cannot write r.jsonl.run/journal.jsonl: File too large"
    kept = journaled(cli.folder / "r.jsonl")
    assert 2 < kept < COUNT - 4, "it stopped at the first result that found no room"
    assert cli(*command).returncode == 0
    assert len(texts(cli.folder / "r.jsonl")) == COUNT


def test_no_gateway_at_all(cli: Cli) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(1))
    url = f"http://127.0.0.1:{free_port()}"
    ended = cli("run", "p.jsonl", "-o", "r.jsonl", "--url", url, "--patience", "0.5")
    assert ended.returncode == 4
    assert ended.stderr.endswith(f"error: no answer from the gateway at {url} for 0 s: connection refused\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope.jsonl", "-o", "r"), "cannot read nope.jsonl: No such file or directory"),
        ((".", "-o", "r"), "cannot read .: Is a directory"),
        (("empty", "-o", "r"), "the input holds no prompts"),
        (("bad.jsonl", "-o", "r"), "none of the 1 requests is valid; `medusaq validate bad.jsonl` says why"),
        (("p.txt", "-o", "no/folder/r"), "the folder no/folder does not exist"),
        (("p.txt", "-o", "."), ". is a folder; -o names the file to write"),
        (("p.txt", "-o", "-"), "-o must name a file: an unfinished run is kept beside it"),
        (
            ("p.txt", "-o", "r", "--max-tokens", "-1"),
            "--max-tokens: input should be greater than or equal to 1",
        ),
        (
            ("p.txt", "-o", "r", "--url", "localhost:1"),
            "--url 'localhost:1': must look like http://127.0.0.1:7860",
        ),
        (
            ("p.txt", "-o", "r", "--column", "x", "--format", "text"),
            "--column is for csv, not for --format text",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    (cli.folder / "p.txt").write_text("x\n", encoding="utf-8")
    (cli.folder / "bad.jsonl").write_text("x\n", encoding="utf-8")
    (cli.folder / "empty").touch()
    ended = cli("run", *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"error: {message}\n")
    assert sorted(path.name for path in cli.folder.iterdir()) == ["bad.jsonl", "empty", "p.txt"]


def test_validate_says_line_by_line_what_is_wrong(cli: Cli) -> None:
    lines = ['{"prompt": "x"}', '{"prompt": "", "seed": -1}', "", "[]", '{"prompt": "y"}']
    (cli.folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    ended = cli("validate", "p.jsonl")
    assert ended.returncode == 2
    assert ended.stdout.splitlines() == [
        "line 2: prompt: string should have at least 1 character",
        "line 2: seed: input should be greater than or equal to 0",
        "line 4: must be a JSON object, one on each line",
        "2 good, 2 bad; format: jsonl",
    ]
    good = cli("validate", "-", stdin=b"one\ntwo\n")
    assert (good.returncode, good.stdout) == (0, "2 good, 0 bad; format: text\n")
