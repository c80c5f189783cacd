"""What a stack keeps to itself: its state folder, prompts, and its own ports."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.helpers.running import Cli
from tests.support.servers import free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack

MARK = "Zanzibar-4711"
OLD = ("logs/worker.log", "redis/old", "files/a/b", "restarts.json")
PAGES = ("/api/tasks", "/api/workers?refresh=1", "/tasks", "/workers", "/broker", "/metrics")


def loosened(state: Path) -> None:
    """A state folder as earlier releases left it."""
    for name in OLD:
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(b"")
        (state / name).chmod(0o644)
    for folder in [state, *(path for path in state.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)


def modes(state: Path) -> Iterator[tuple[str, int]]:
    for path in [state, *state.rglob("*")]:
        yield str(path.relative_to(state)), stat.S_IMODE(path.lstat().st_mode)


def test_it_is_private_and_flower_knows_no_prompt(cli: Cli) -> None:
    state = cli.folder / ".medusaq"
    loosened(state)
    up = cli.start("up", "--port", "0", "--flower-port", "0", FLOWER_UNAUTHENTICATED_API="1")
    url = up.wait_for("  gateway  ").split()[-1]
    flower = up.wait_for("  Flower   ").split()[-1]
    wait_until(lambda: _answers(flower))

    bodies: list[dict[str, object]] = [
        {"prompt": f"{MARK} is an island"},
        {"prompt": f"{MARK} fail=boom"},
        {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": MARK}]},
        {"prompt": f"{MARK} in bulk", "priority": "bulk"},
    ]
    jobs = [httpx.post(f"{url}/v1/jobs", json=body).raise_for_status().json()["id"] for body in bodies]
    table = f"a\n{MARK}\n{MARK} fail=boom\n".encode()
    form = {"purpose": "batch"}
    file = httpx.post(f"{url}/v1/files", data=form, files={"file": ("t.csv", table)}).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/jobs", "completion_window": "24h", "template": "{{ a }}"}
    batch = httpx.post(f"{url}/v1/batches", json=asked).raise_for_status().json()["id"]
    ended = {"succeeded", "failed"}
    wait_until(lambda: all(httpx.get(f"{url}/v1/jobs/{job}").json()["status"] in ended for job in jobs))
    wait_until(lambda: httpx.get(f"{url}/v1/batches/{batch}").json()["status"] == "completed")

    def tasks() -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = httpx.get(f"{flower}/api/tasks").json()
        return found

    seen = {"SUCCESS", "FAILURE"}
    wait_until(lambda: len(tasks()) > len(jobs) and all(one["state"] in seen for one in tasks().values()))
    assert tasks()[jobs[0]]["args"] == f"'{len(f'{MARK} is an island')} chars'"
    assert tasks()[jobs[1]]["exception"] == "boom"
    assert tasks()[jobs[2]]["args"] == f"'{len('Be kind.' + MARK)} chars'"
    for job in jobs:
        httpx.delete(f"{url}/v1/jobs/{job}").raise_for_status()
    for page in (*PAGES, *(f"/api/task/info/{job}" for job in jobs), *(f"/task/{job}" for job in jobs)):
        answer = httpx.get(flower + page, timeout=30)
        assert answer.is_success, page
        assert MARK not in answer.text, page
    kept = list(state.glob("flower*"))
    wait_until(lambda: any(jobs[0].encode() in path.read_bytes() for path in kept))
    for path in kept:
        assert MARK.encode() not in path.read_bytes(), path

    names = {name for name, _ in modes(state)}
    assert {"logs/worker.log", "redis/appendonlydir", "stack.json", "lock", *OLD[1:-1]} <= names
    assert [path for path in (state / "files").rglob("*") if path.is_file() and path.stat().st_size]
    assert {
        name: oct(mode)
        for name, mode in modes(state)
        if mode != (0o700 if (state / name).is_dir() else 0o600)
    } == {}


def test_webhooks_reach_no_service_of_the_stack(cli: Cli) -> None:
    metrics = free_port()
    env = {
        "MEDUSAQ_WEBHOOK_ALLOW": '["0.0.0.0/0", "::/0"]',
        "MEDUSAQ_METRICS_ADDRESS": f"127.0.0.1:{metrics}",
    }
    up = cli.start("up", "--port", "0", "--flower-port", "0", **env)
    url = up.wait_for("  gateway  ").split()[-1]
    own = json.loads((cli.folder / ".medusaq" / "stack.json").read_text())
    redis = int(own["redis_url"].rpartition(":")[2].partition("/")[0])
    for port in (own["port"], own["flower_port"], redis, metrics, metrics + 1):
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"):
            hook = {"url": f"http://{host}:{port}/"}
            refused = httpx.post(f"{url}/v1/jobs", json={"prompt": "a", "webhook": hook})
            assert refused.status_code == 400, hook
            said = refused.json()["error"]
            assert (said["param"], said["message"]) == (
                "webhook.url",
                f"webhook.url: port {port} of {host.strip('[]')} belongs to a service of medusaq itself: "
                "name another receiver",
            )


def _answers(flower: str) -> bool:
    try:
        return httpx.get(f"{flower}/healthcheck").is_success
    except httpx.TransportError:
        return False
