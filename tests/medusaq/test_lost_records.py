"""Jobs and batches that were accepted, and that Redis lost with the last second of its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import medusaq
from medusaq import GatewayError, MedusaqError
from medusaq.steps import Open, Send, Step
from tasks.base.settings import Settings
from tests.cli.conftest import cli
from tests.cli.helpers.running import Cli, texts, write_jsonl
from tests.cli.helpers.runs import COUNT, answers, batches_of, begun, slow
from tests.support.servers import RedisServer, fast_settings, free_port

__all__ = ["cli"]
pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def redis_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def served(redis_of_its_own: RedisServer) -> Settings:
    return fast_settings(redis_of_its_own, port=free_port())


class Cut:
    """A power cut takes back what was written since it was made."""

    def __init__(self, server: RedisServer) -> None:
        self._server, self._written = server, server.written()

    def now(self) -> None:
        self._server.lose_power(self._written)


@pytest.fixture
def cut(redis_of_its_own: RedisServer, gateway: str) -> Cut:
    assert gateway
    return Cut(redis_of_its_own)


def at(client: Any, cut: Cut, method: str, path: str, times: int = 1) -> None:
    """Cut the power before such a request, as often."""
    result, left = client._connection._result, [None] * times

    def before(step: Step) -> Any:
        send = step.send if isinstance(step, Open) else step
        if isinstance(send, Send) and send.method == method and send.path.startswith(path) and left:
            left.pop()
            cut.now()
        return result(step)

    client._connection._result = before


def kept(gateway: str, kind: str) -> list[str]:
    return [record["id"] for record in httpx.get(f"{gateway}/v1/{kind}").json()["data"]]


def test_a_lost_job_is_submitted_again(client: Any, cut: Cut, gateway: str) -> None:
    before = kept(gateway, "jobs")
    job = client.submit("hello delay=1")
    cut.now()
    with pytest.raises(GatewayError, match="no job with id"):
        client.job(job.id)
    ended = client.wait(job)
    assert ended.text == "hello"
    assert ended.id != job.id
    assert client.wait(job) == ended, "the same key is the same job"
    assert kept(gateway, "jobs") == [ended.id, *before]


def test_a_lost_batch_is_submitted_again_with_its_file(client: Any, cut: Cut, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("prompt\nhello\n")
    of_rows, of_a_file = (
        client.submit_batch(["hello"]),
        client.submit_batch(tmp_path / "t.csv", template="{{ prompt }}"),
    )
    cut.now()
    for batch in (of_rows, of_a_file):
        ended = client.wait(batch)
        assert ended.id != batch.id
        assert [row["answer"] for row in client.rows(ended)] == ["hello"]


def test_rows_that_nobody_has_any_more_are_asked_for(client: Any, cut: Cut) -> None:
    batch = client.submit_batch(iter(["hello"]))
    cut.now()
    with pytest.raises(MedusaqError, match=r"^the gateway lost the batch, .*: submit them again$"):
        client.wait(batch)


@pytest.mark.parametrize("at_path", ["/v1/batches", "/v1/batches/"])
def test_a_run_goes_on_with_rows_of_an_iterator(gateway: str, cut: Cut, at_path: str) -> None:
    """The power is cut between the file and the batch, or after both."""
    before = kept(gateway, "files"), kept(gateway, "batches")
    with medusaq.Client(gateway) as client:
        at(client, cut, "POST" if at_path == "/v1/batches" else "GET", at_path)
        rows = [row["answer"] for row in client.run(f"word{n}" for n in range(3))]
    assert rows == ["word0", "word1", "word2"]
    assert (kept(gateway, "files"), kept(gateway, "batches")) == before


def test_a_stream_begins_again_if_nothing_was_given(gateway: str, cut: Cut) -> None:
    with medusaq.Client(gateway) as client:
        at(client, cut, "GET", "/v1/jobs/")
        assert "".join(client.stream("one two stream=1 chunks=2 delay=1")).split() == ["one", "two"]


def test_what_is_lost_again_and_again_is_given_up(gateway: str, cut: Cut) -> None:
    with medusaq.Client(gateway) as client:
        at(client, cut, "GET", "/v1/jobs/", times=4)
        job = client.submit("hello delay=5")
        with pytest.raises(GatewayError, match="no job with id"):
            client.wait(job)


def test_the_command_sends_its_part_again(cli: Cli, gateway: str, cut: Cut) -> None:
    write_jsonl(cli.folder / "p.jsonl", [*slow(COUNT - 1, 0.05), slow(COUNT, 8)[-1]])
    running = cli.start("run", "p.jsonl", "-o", "r.jsonl", "--url", gateway)
    run_id = begun(cli, running, gateway).read()["run_id"]
    cut.now()
    assert running.wait() == 0, running.text()
    assert "the gateway does not know part 1 of 1: sending it again" in running.text()
    assert texts(cli.folder / "r.jsonl") == answers(COUNT)
    assert len(batches_of(gateway, run_id)) == 1


def test_what_others_submitted_is_not_submitted_again(client: Any, gateway: str) -> None:
    job = client.wait(client.submit("hello"))
    httpx.delete(f"{gateway}/v1/jobs/{job.id}").raise_for_status()
    with pytest.raises(GatewayError, match="no job with id"):
        client.wait(medusaq.Job(job.id, "queued"))
