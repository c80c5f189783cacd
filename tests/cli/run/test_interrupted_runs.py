"""Runs that are killed or interrupted, or whose gateway or disk fails, go on; the engine is scripted."""

from __future__ import annotations

import json
import re
import signal

import httpx
import pytest

from cli.run.folder import RunFolder
from cli.run.state import Part, RunIdentity, RunRecord
from tasks.base.settings import Settings
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, Running, read_jsonl, texts, write_jsonl
from tests.cli.helpers.runs import COUNT, answers, batches_of, begun, held, interrupt, slow
from tests.support.servers import free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack


def test_a_run_killed_at_any_point_goes_on(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", held())
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    results = cli.folder / "r.jsonl"
    running = cli.start(*command)
    run = begun(cli, running, gateway, 6)
    running.send(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert not results.exists()
    run_id = run.read()["run_id"]

    ended = cli(*command)
    assert ended.returncode == 0, ended.stderr
    going_on = re.search(rf"going on: (\d+) of {COUNT} requests are done already", ended.stderr)
    assert going_on is not None
    assert int(going_on[1]) >= 6
    assert texts(results) == answers(COUNT)
    assert not run.record.parent.exists()
    assert len(batches_of(gateway, run_id)) == 1
    assert f"in this session   {COUNT - int(going_on[1])}" in ended.stdout

    assert cli("run", "p.jsonl", "-o", "whole.jsonl", "--url", gateway).returncode == 0
    assert texts(cli.folder / "whole.jsonl") == texts(results)


@pytest.mark.parametrize("forgotten", [("batch_id",), ("batch_id", "file_id")])
def test_killed_before_it_noted_what_it_made_a_run_makes_nothing_twice(
    cli: Cli, gateway: str, forgotten: tuple[str, ...]
) -> None:
    write_jsonl(cli.folder / "p.jsonl", held())
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    running = cli.start(*command)
    run = begun(cli, running, gateway)
    running.send(signal.SIGKILL)
    running.wait()
    record = run.read()
    for name in forgotten:
        record["parts"][0][name] = None
    run.record.write_text(json.dumps(record), encoding="utf-8")
    assert cli(*command).returncode == 0
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)
    assert len(batches_of(gateway, record["run_id"])) == 1


def test_killed_while_it_cuts_the_input_a_run_begins_again(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(in_process.folder / "p.jsonl", slow(3, 0))
    parts = in_process.folder / "r.jsonl.run" / "parts"
    parts.mkdir(parents=True)
    (parts / "000001.jsonl").write_text('{"custom_id": "half a li', encoding="utf-8")
    (parts / "000002.jsonl").write_text("of another input", encoding="utf-8")
    assert in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway).returncode == 0
    assert texts(in_process.folder / "r.jsonl") == answers(3)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_at_the_gateway(cli: Cli, gateway: str, signum: int) -> None:
    write_jsonl(cli.folder / "p.jsonl", held())
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    running = cli.start(*command)
    run = interrupt(cli, running, gateway, signum)
    assert re.fullmatch(
        rf"\d+ of {COUNT} requests are done; "
        "the gateway goes on: repeat the same command to fetch the results",
        running.lines[-2],
    )
    assert running.lines[-1] == "interrupted"
    wait_until(run.ended)
    (cli.folder / "r.jsonl").write_text("as if killed between this and the end", encoding="utf-8")
    ended = cli(*command)
    assert ended.returncode == 0
    assert f"going on: {COUNT} of {COUNT} requests are done already" in ended.stderr
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)


def test_a_changed_input_or_option_is_refused_until_fresh(cli: Cli, gateway: str) -> None:
    source = write_jsonl(cli.folder / "p.jsonl", slow(4) + slow(COUNT, 60)[4:])
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    run = interrupt(cli, cli.start(*command), gateway)
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
    (before,) = run.batches()
    assert before["status"] == "in_progress"
    assert cli(*command, "--fresh").returncode == 0
    assert texts(cli.folder / "r.jsonl") == answers(2)
    after = httpx.get(f"{gateway}/v1/batches/{before['id']}").json()
    assert after["status"] in ("cancelling", "cancelled"), "what is dropped does not run on"


def test_a_run_from_a_pipe_goes_on_with_the_same_input_alone(cli: Cli, gateway: str) -> None:
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in held())
    command = ("run", "-", "-o", "r.jsonl", "--url", gateway)
    (cli.folder / "p.jsonl").write_bytes(whole)
    running = cli.start(*command, stdin=cli.folder / "p.jsonl")
    begun(cli, running, gateway)
    running.send(signal.SIGKILL)
    running.wait()
    ended = cli(*command, stdin=whole[:-20])
    assert (ended.returncode, ended.stderr.count("the input has changed")) == (2, 1)
    assert cli(*command, stdin=whole).returncode == 0
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)


def another_gateway(cli: Cli, served: Settings, port: int) -> Running:
    """A second one on the same Redis and files, so that it can be killed."""
    where = {
        "MEDUSAQ_REDIS_URL": served.redis_url,
        "MEDUSAQ_KEY_PREFIX": served.key_prefix,
        "MEDUSAQ_FILES": served.files,
    }
    running = cli.start("gateway", MEDUSAQ_PORT=str(port), **where)
    running.wait_for("Uvicorn running")
    return running


def test_a_gateway_that_comes_back_is_waited_for(cli: Cli, served: Settings, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", held())
    port = free_port()
    first = another_gateway(cli, served, port)
    url = f"http://127.0.0.1:{port}"
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", "--url", url)
    begun(cli, running, gateway)
    first.send(signal.SIGKILL)
    first.wait()
    another_gateway(cli, served, port)
    assert running.wait() == 0, running.text()
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)


def test_a_gateway_that_stays_away_is_given_up(cli: Cli, served: Settings, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT, 0.5))
    port = free_port()
    first = another_gateway(cli, served, port)
    url = f"http://127.0.0.1:{port}"
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url")
    running = cli.start(*command, url, "--patience", "1")
    begun(cli, running, gateway)
    first.send(signal.SIGKILL)
    assert running.wait() == 4
    assert running.lines[-2].endswith("requests are done; repeat the same command to go on")
    assert running.lines[-1].startswith(f"error: no answer from the gateway at {url} for 1 s")
    again = cli(*command, url, "--patience", "0.5")
    assert again.returncode == 4
    assert again.stderr.splitlines()[-2] == "repeat the same command to go on", "it cannot know how far it is"
    assert cli(*command, gateway).returncode == 0
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)


def test_a_batch_that_the_gateway_does_not_know_is_asked_for_under_its_key(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", held())
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    run = interrupt(cli, cli.start(*command), gateway)
    record = run.read()
    record["parts"][0]["batch_id"] = "batch_of_yesterday"
    run.record.write_text(json.dumps(record), encoding="utf-8")
    ended = cli(*command)
    assert ended.returncode == 0, ended.stderr
    assert "the gateway does not know part 1 of 1: sending it again" in ended.stderr
    assert "going on" not in ended.stderr
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)
    assert len(batches_of(gateway, record["run_id"])) == 1, "the key finds what is there after all"


@pytest.mark.parametrize("kind", ["output_file_id", "error_file_id"])
def test_answers_that_the_gateway_has_lost_are_made_anew(cli: Cli, gateway: str, kind: str) -> None:
    lines = held()
    lines[5]["prompt"] += " fail=boom"
    write_jsonl(cli.folder / "p.jsonl", lines)
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    run = interrupt(cli, cli.start(*command), gateway)
    wait_until(run.ended)
    httpx.delete(f"{gateway}/v1/files/{run.batches()[0][kind]}").raise_for_status()
    ended = cli(*command)
    assert ended.returncode == 1, ended.stderr
    assert "the gateway does not know part 1 of 1: sending it again" in ended.stderr
    rows = read_jsonl(cli.folder / "r.jsonl")
    assert [row["custom_id"] for row in rows] == [f"id-{n}" for n in range(COUNT)]
    assert [row["custom_id"] for row in rows if row["error"]] == ["id-5"]


def test_a_full_disk_at_the_end_costs_nothing_but_a_repetition(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT, 0))
    command = ("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    ended = cli(*command, file_kb=6)
    assert ended.returncode == 1
    *_, said, error = ended.stderr.splitlines()
    assert said == f"{COUNT} of {COUNT} requests are done; repeat the same command to go on"
    assert error == "error: cannot write r.jsonl: File too large"
    assert not (cli.folder / "r.jsonl").exists()
    ended = cli(*command)
    assert ended.returncode == 0
    assert f"going on: {COUNT} of {COUNT} requests are done already" in ended.stderr
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)


def test_a_full_disk_at_the_beginning_leaves_nothing(cli: Cli, gateway: str) -> None:
    write_jsonl(cli.folder / "p.jsonl", slow(COUNT, 0))
    ended = cli("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, file_kb=1)
    assert ended.returncode == 1
    assert ended.stderr == "error: cannot write r.jsonl.run/order.jsonl: File too large\n"
    assert sorted(path.name for path in cli.folder.iterdir()) == ["p.jsonl"]


def test_a_run_of_which_nothing_was_sent_binds_no_options(in_process: InProcessCli, gateway: str) -> None:
    """As one leaves it that was killed before it found a gateway, or whose own stack did not start."""
    write_jsonl(in_process.folder / "p.jsonl", slow(2, 0))
    folder = RunFolder(in_process.folder / "r.jsonl")
    with folder:
        RunRecord(RunIdentity("of another input", {"max_tokens": 9}), 1, 0, [Part(1)]).save(folder.record)
    ended = in_process("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway, "--max-tokens", "5")
    assert ended.returncode == 0, ended.stderr
    assert texts(in_process.folder / "r.jsonl") == answers(2)
    assert not folder.path.exists()
