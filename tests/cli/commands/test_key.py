"""`medusaq keys`, for the running stack and for a Redis that is named, and commands that send their key."""

from __future__ import annotations

import json
import re
import signal

import httpx
import pytest

from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.cli.stack.test_local_stack import up
from tests.support.servers import free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack


def needs_key(url: str) -> bool:
    return httpx.get(f"{url}/v1/jobs").status_code == 401


def test_keys_of_the_running_stack(cli: Cli, in_process: InProcessCli) -> None:
    running, url = up(cli, "--no-flower")
    assert "only this machine" in in_process("keys", "list").stdout
    made = in_process("keys", "create", "alice", "--requests-per-minute", "600", "--tokens-per-day", "50")
    secret = made.stdout.strip()
    assert re.fullmatch(r"mq_[\w-]{43}", secret)
    created, *warning = made.stderr.splitlines()
    assert re.fullmatch(r"created key_\w{32}; store the key above, it cannot be shown again", created)
    assert warning[0].startswith("from now on every request to the gateway needs a key: ")
    assert all(how in made.stderr for how in ("MEDUSAQ_API_KEY", "Authorization: Bearer KEY"))
    wait_until(lambda: needs_key(url))

    refused = in_process("submit", "x", "--url", url)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: the API key is missing")
    cli.env["MEDUSAQ_API_KEY"] = secret
    assert in_process("submit", "hello", "--wait", "--max-tokens", "20", "--url", url).stdout == "hello\n"
    (cli.folder / "p.txt").write_text("one\ntwo\n")
    ran = cli("run", "p.txt", "-o", "r.jsonl", "--max-tokens", "5", "--url", url)
    assert ran.returncode == 0, ran.stderr
    over = in_process("submit", "hello", "--max-tokens", "50", "--url", url)
    assert "50 tokens a day" in over.stderr

    (listed,) = json.loads(in_process("keys", "list", "--json").stdout)
    assert (listed["name"], listed["key"]) == ("alice", f"mq_...{secret[-4:]}")
    assert listed["limits"]["requests_per_minute"] == 600
    assert 0 < listed["tokens_today"] < 50
    table = in_process("keys", "list").stdout
    assert secret not in table
    assert re.search(rf"{listed['id']} +alice +mq_\.\.\.\S+ .* 600 +\d+ of 50 ", table)

    second = in_process("keys", "create", "bob", "--json")
    assert (json.loads(second.stdout)["name"], second.stderr) == ("bob", ""), "nothing has changed for others"
    assert in_process("keys", "revoke", json.loads(second.stdout)["id"]).returncode == 0
    assert in_process("keys", "revoke", listed["id"]).stdout == "revoked\n"
    assert "unknown or was revoked" in in_process("jobs", "--url", url).stderr
    assert " revoked " in in_process("keys", "list").stdout
    running.send(signal.SIGTERM)
    running.wait()
    assert not (cli.folder / ".medusaq" / "redis.url").exists()


def test_the_redis_of_the_settings_comes_first(
    in_process: InProcessCli, gateway: str, served: object
) -> None:
    in_process.env["MEDUSAQ_REDIS_URL"] = served.redis_url  # type: ignore[attr-defined]
    in_process.env["MEDUSAQ_KEY_PREFIX"] = served.key_prefix  # type: ignore[attr-defined]
    made = json.loads(
        in_process("keys", "create", "bob", "--weight", "2", "--max-batches", "3", "--json").stdout
    )
    limits = made["limits"]
    assert (made["name"], limits["weight"], limits["max_batches"]) == ("bob", 2.0, 3)
    wait_until(lambda: needs_key(gateway))
    assert httpx.get(f"{gateway}/v1/jobs", headers={"Authorization": f"Bearer {made['key']}"}).is_success


def test_a_key_that_is_spent_ends_a_run_at_once(
    in_process: InProcessCli, gateway: str, served: object
) -> None:
    in_process.env["MEDUSAQ_REDIS_URL"] = served.redis_url  # type: ignore[attr-defined]
    in_process.env["MEDUSAQ_KEY_PREFIX"] = served.key_prefix  # type: ignore[attr-defined]
    made = in_process("keys", "create", "poor", "--tokens-per-day", "1")
    in_process.env["MEDUSAQ_API_KEY"] = made.stdout.strip()
    spending = in_process("submit", "hello", "--wait", "--max-tokens", "1", "--url", gateway)
    assert spending.returncode == 0, spending.stderr
    (in_process.folder / "p.txt").write_text("one\ntwo\n")
    ran = in_process("run", "p.txt", "-o", "r.jsonl", "--url", gateway)
    assert ran.returncode == 1
    assert "error: the gateway refused part 1: the 1 tokens a day of this API key are spent" in ran.stderr


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        ("--requests-per-minute", "1", "0"),
        ("--tokens-per-day", "1", "0"),
        ("--max-jobs", "1", "0"),
        ("--max-batches", "1", "0"),
        ("--max-files", "1", "0"),
        ("--max-files-bytes", "1", "0"),
        ("--max-stored-bytes", "1", "0"),
        ("--weight", "0.001", "0.0009"),
        ("--weight", "1000", "1000.1"),
    ],
)
def test_the_limits_that_a_key_may_have(
    in_process: InProcessCli, served: object, option: str, taken: str, refused: str
) -> None:
    in_process.env["MEDUSAQ_REDIS_URL"] = served.redis_url  # type: ignore[attr-defined]
    made = json.loads(in_process("keys", "create", "carol", option, taken, "--json").stdout)
    assert made["limits"][option.removeprefix("--").replace("-", "_")] == float(taken)
    ended = in_process("keys", "create", "carol", option, refused)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: Invalid value for '{option}': ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create",), "Missing argument 'NAME'."),
        (("create", "a", "--weight", "0"), "Invalid value for '--weight': "),
        (("create", "a", "--requests-per-minute", "0"), "Invalid value for '--requests-per-minute': "),
        (("revoke",), "Missing argument 'ID'."),
    ],
)
def test_slips_are_one_line(in_process: InProcessCli, arguments: tuple[str, ...], message: str) -> None:
    ended = in_process("keys", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {message}")


def test_an_unknown_key_and_a_missing_redis(in_process: InProcessCli, served: object) -> None:
    in_process.env["MEDUSAQ_REDIS_URL"] = served.redis_url  # type: ignore[attr-defined]
    unknown = in_process("keys", "revoke", "key_x")
    assert (unknown.returncode, unknown.stderr) == (1, "error: no API key with id 'key_x'\n")
    in_process.env["MEDUSAQ_REDIS_URL"] = f"redis://:hidden@127.0.0.1:{free_port()}/0"
    away = in_process("keys", "list")
    assert away.returncode == 1
    assert away.stderr.startswith("error: Redis: ")
    assert away.stderr.endswith("start `medusaq up`, or set MEDUSAQ_REDIS_URL\n")
    assert "hidden" not in away.stderr


def test_up_beyond_this_machine_is_refused_until_there_is_a_key(cli: Cli) -> None:
    closed = cli.start("up", "--port", "0", "--no-flower", MEDUSAQ_HOST="0.0.0.0")
    assert closed.wait() == 1
    assert closed.lines[-1].startswith("error: MEDUSAQ_HOST: 0.0.0.0 is reachable from other machines")
    flower = cli.start("up", "--port", "0", "--flower-port", "0", MEDUSAQ_HOST="0.0.0.0")
    assert flower.wait() == 1
    assert flower.lines[-1].startswith("error: Flower on 0.0.0.0 without a password")

    running, _ = up(cli, "--no-flower")
    assert cli("keys", "create", "first").returncode == 0
    running.send(signal.SIGTERM)
    running.wait()
    running, url = up(cli, MEDUSAQ_HOST="0.0.0.0", FLOWER_BASIC_AUTH="me:secret")
    assert needs_key(url)
    flower_url = running.wait_for("  Flower   ").split()[-1]
    wait_until(lambda: _status(flower_url) == 401)
    assert httpx.get(flower_url, auth=("me", "secret"), follow_redirects=True).is_success


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0
