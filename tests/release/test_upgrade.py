"""The state folder of an earlier release: the present code starts on it, reads it, and goes on with it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medusaq import Client
from tests.cli.conftest import cli
from tests.cli.helpers.running import Cli
from tests.release.earlier_state import EXPECTED, STATE, STATES

__all__ = ["cli"]

pytestmark = pytest.mark.stack
ARCHIVES = sorted(STATES.glob("*.tar.gz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """What the earlier gateway said; its state folder is in tmp_path."""
    # `tarfile` has its filters only from Python 3.11.4 on, and Debian 12 has 3.11.2.
    subprocess.run(["tar", "-xzf", request.param, "-C", tmp_path], check=True)
    said: dict[str, Any] = json.loads((tmp_path / EXPECTED).read_text(encoding="utf-8"))
    return said


@pytest.fixture
def client(earlier: dict[str, Any], cli: Cli) -> Iterator[Client]:
    assert earlier
    running = cli.start("up", "--port", "0", "--no-flower", "--state-dir", STATE)
    with Client(running.wait_for("  gateway  ").split()[-1]) as client:
        yield client
    assert cli("down", "--state-dir", STATE).returncode == 0
    assert running.wait() == 0


def test_a_state_folder_of_an_earlier_release_is_gone_on_with(
    earlier: dict[str, Any], client: Client
) -> None:
    for before in earlier["ended"]:
        assert dict(client.job(before["id"]).record) == before
    for name in ("lines", "table"):
        said = earlier[name]
        batch = client.batch(said["record"]["id"])
        said["record"]["request_counts"] |= {"cancelled": 0, "expired": 0}  # which it did not have
        assert {key: batch.record[key] for key in said["record"]} == said["record"]
        assert list(client.output(batch)) == said["output"]
        assert list(client.errors(batch)) == said["errors"]
    assert list(client.rows(client.batch(earlier["table"]["record"]["id"]))) == earlier["table"]["rows"]

    waiting = [client.wait(client.job(job_id), timeout_s=120) for job_id in earlier["waiting"]]
    assert [job.text for job in waiting] == [f"later {n}" for n in range(len(waiting))]
    under_way = client.wait(client.batch(earlier["under_way"]["id"]), timeout_s=120)
    assert (under_way.status, under_way.total) == ("completed", earlier["under_way"]["total"])
    answered = [line["custom_id"] for line in client.output(under_way)]
    failed = [line["custom_id"] for line in client.errors(under_way)]
    assert (answered, failed) == ([f"c{n}" for n in range(under_way.total) if n != 3], ["c3"])
    assert [row["answer"] for row in client.run(["new"])] == ["new"]


def test_there_is_an_earlier_release() -> None:
    assert ARCHIVES
