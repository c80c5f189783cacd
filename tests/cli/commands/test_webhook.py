"""`medusaq webhooks` against a real gateway, workers and the receiver of the examples."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.base.settings import Settings
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, write_jsonl
from tests.support.peers.receivers import LOOPBACK, receiving, status
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.tuned import constants
from tests.support.workers import ROOT, wait_until

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def served(redis_server: RedisServer) -> Settings:
    return fast_settings(
        redis_server,
        port=free_port(),
        webhook_allow=LOOPBACK,
    )


@pytest.fixture(scope="module")
def worker_env() -> dict[str, str]:
    return constants({"tasks.webhooks.store.SCHEDULE": {"retries_s": []}})


@pytest.fixture
def cli(cli: Cli, gateway: str) -> Cli:
    cli.env["MEDUSAQ_URL"] = gateway
    return cli


class Example:
    """examples/webhook_receiver.py, and what it prints."""

    def __init__(self, secret: str, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        self._out = folder / "receiver.out"
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, ROOT / "examples" / "webhook_receiver.py", str(port)],
                env={"WEBHOOK_SECRET": secret},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._listens, alive=lambda: self._process.poll() is None, report=self._out.read_text)

    def printed(self, count: int) -> list[str]:
        wait_until(lambda: len(self._out.read_text().splitlines()) >= count, report=self._out.read_text)
        return self._out.read_text().splitlines()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        try:
            return httpx.post(self.url, content=b"{}").status_code == 400
        except httpx.TransportError:
            return False


@pytest.fixture
def example(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    started = Example(cli("webhooks", "secret").stdout.strip(), tmp_path_factory.mktemp("receiver"))
    yield started
    started.stop()


def newest(in_process: InProcessCli, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        in_process("webhooks", "list", "--json", "--limit", "1", *options).stdout
    )
    return found["data"][0] if found["data"] else {}


def test_a_job_and_a_batch_tell_the_receiver_of_the_documentation(
    in_process: InProcessCli, example: Example
) -> None:
    job = in_process("submit", "hello", "--webhook", example.url).stdout.strip()
    assert example.printed(1) == [f"job.succeeded {job} succeeded"]
    body = {"prompt": "x"}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    write_jsonl(in_process.folder / "lines.jsonl", [line])
    batch = in_process("batches", "create", "lines.jsonl", "--webhook", example.url).stdout.strip()
    assert example.printed(2)[1] == f"batch.completed {batch} completed"
    wait_until(lambda: newest(in_process, "--of", batch)["status"] == "delivered")
    listed = in_process("webhooks", "list").stdout
    for part in (
        job.removeprefix("job_"),
        "delivered",
        "job.succeeded",
        "batch.completed",
        "204",
        example.url,
    ):
        assert part in listed
    delivery = f"evt_{job.removeprefix('job_')}"
    shown = in_process("webhooks", "show", delivery).stdout
    for part in (f"of             {job}", "status         delivered", "attempt 1", '"type": "job.succeeded"'):
        assert part in shown
    assert in_process("webhooks", "list", "--status", "failed").stdout == "no deliveries\n"


def test_what_failed_is_sent_again(in_process: InProcessCli) -> None:
    with receiving() as receiver:
        receiver.answer = status(500)
        job = in_process("submit", "hello", "--webhook", receiver.url).stdout.strip()
        wait_until(lambda: newest(in_process, "--of", job).get("status") == "failed")
        delivery = newest(in_process, "--status", "failed")["id"]
        receiver.answer = status(200)
        assert in_process("webhooks", "replay", delivery).stdout == f"{delivery} is sent again\n"
        wait_until(lambda: newest(in_process, "--of", job)["status"] == "delivered")
        assert len(receiver.got) == 2


def test_a_new_secret(in_process: InProcessCli) -> None:
    before = in_process("webhooks", "secret").stdout
    assert before.startswith("whsec_")
    rotated = in_process("webhooks", "rotate")
    assert rotated.stdout.startswith("whsec_")
    assert rotated.stdout != before
    assert rotated.stderr.startswith("the previous secret also signs until ")
    assert in_process("webhooks", "secret").stdout == rotated.stdout
    assert json.loads(in_process("webhooks", "secret", "--json").stdout)["previous"] == before.strip()
    too_soon = in_process("webhooks", "rotate")
    assert (too_soon.returncode, too_soon.stdout) == (1, "")
    assert too_soon.stderr.startswith("error: the secret was changed less than a day ago")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("webhooks", "show", "evt_x"), "no delivery with id 'evt_x'"),
        (("webhooks", "replay", "evt_x"), "no delivery with id 'evt_x'"),
        (
            ("submit", "x", "--webhook", "example.com"),
            "webhook.url: must look like https://example.com/path, in ASCII, without user, "
            "password or fragment",
        ),
    ],
)
def test_slips_are_one_line(in_process: InProcessCli, arguments: tuple[str, ...], message: str) -> None:
    ended = in_process(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"error: {message}\n")
