"""`medusaq up` and single services: started, hurt, killed and stopped for real."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from cli.base.errors import CliError
from cli.processes.ports import check_port_free
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, Running
from tests.support.servers import RedisServer, free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
SERVICES = {"gateway", "worker", "io", "flower"}
LEAST_OF_CLIENTS = 32768  # the system gives connections ports from here on
OPEN_FIGURES = {"MEDUSAQ_METRICS_ADDRESS": "0.0.0.0:9100"}


def up(cli: Cli, *arguments: str, **env: str) -> tuple[Running, str]:
    """`medusaq up`, ready, and the gateway's address."""
    running = cli.start("up", "--port", "0", "--flower-port", "0", *arguments, **env)
    url = running.wait_for("  gateway  ").split()[-1]
    return running, url


def port_of(url: str) -> int:
    port = httpx.URL(url).port
    assert port is not None
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def uploaded(url: str) -> str:
    form, content = {"purpose": "batch"}, {"file": ("a.jsonl", b"{}")}
    return str(httpx.post(f"{url}/v1/files", data=form, files=content).json()["id"])


def test_up_serves_restarts_what_crashes_and_leaves_nothing(cli: Cli) -> None:
    running, url = up(cli)
    flower = running.wait_for("  Flower   ").split()[-1]
    assert running.wait_for("  docs     ").split()[-1] == f"{url}/docs"
    assert httpx.get(f"{url}/docs").is_success
    wait_until(lambda: not is_free(port_of(flower)))
    assert httpx.get(flower, follow_redirects=True).is_success
    submitted = cli("submit", "hello", "--wait", "--url", url)
    assert (submitted.returncode, submitted.stdout) == (0, "hello\n")

    worker = cli.service("worker")
    cli.kill(worker)
    running.wait_for("worker ended (killed by SIGKILL), restarting it in 0.5 s")
    again = cli("submit", "still there", "--wait", "--url", url)
    assert (again.returncode, again.stdout) == (0, "still there\n")
    assert cli.service("worker") != worker

    second = cli("up", "--port", "0")
    assert second.returncode == 1
    assert second.stderr == f"error: another stack is using .medusaq (process {running.process.pid})\n"
    for option, address, owner in (("--port", url, "the gateway"), ("--flower-port", flower, "Flower")):
        other = "--flower-port" if option == "--port" else "--port"
        taken = cli("up", "--state-dir", "b", other, "0", option, str(port_of(address)))
        assert taken.returncode == 1
        assert taken.stderr == (
            f"error: port {port_of(address)} of {owner} is in use; choose another with {option}\n"
        )

    assert len(cli.processes()) >= 6
    running.send(signal.SIGINT)
    assert running.wait() == 0
    assert running.lines[-1] == "stopped"
    assert cli.processes() == {}
    assert is_free(port_of(url))
    assert is_free(port_of(flower))


def test_down_stops_up_in_order_and_waits(cli: Cli, in_process: InProcessCli) -> None:
    nothing = in_process("down")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "no stack runs on .medusaq\n")
    assert not (cli.folder / ".medusaq").exists()
    running, url = up(cli, "--no-flower", MEDUSAQ_DRAIN_S="30")
    elsewhere = in_process("down", "--state-dir", "b")
    assert (elsewhere.returncode, elsewhere.stderr) == (0, "no stack runs on b\n")
    job = in_process("submit", "the last one delay=1", "--url", url).stdout.strip()
    wait_until(lambda: httpx.get(f"{url}/v1/jobs/{job}").json()["status"] == "running")
    ended = in_process("down")
    stopping = f"stopping the stack on .medusaq (process {running.process.pid})"
    assert (ended.returncode, ended.stderr.splitlines()) == (0, [stopping, "stopped"])
    assert set(cli.processes()) <= {running.process.pid}, "it has waited for the end of all services"
    assert running.wait() == 0
    assert running.lines[-1] == "stopped"
    assert "succeeded" in (cli.folder / ".medusaq" / "logs" / "worker.log").read_text()
    again = in_process("down")
    assert (again.returncode, again.stderr) == (0, "no stack runs on .medusaq\n")


def test_a_second_down_does_not_wait_for_running_jobs(cli: Cli) -> None:
    running, url = up(cli, "--no-flower", MEDUSAQ_DRAIN_S="60")
    job = cli("submit", "endless delay=300", "--url", url).stdout.strip()
    wait_until(lambda: httpx.get(f"{url}/v1/jobs/{job}").json()["status"] == "running")
    first = cli.start("down")
    first.wait_for("stopping the stack on .medusaq")
    running.wait_for("stopping (press Ctrl-C again")
    began = time.monotonic()
    assert cli("down").returncode == 0
    assert (first.wait(), running.wait()) == (0, 0)
    assert time.monotonic() - began < 40
    assert cli.processes() == {}


def two_ports() -> int:
    """The first of two that follow each other, which nothing holds and no client is given."""
    for port in range(LEAST_OF_CLIENTS - 2 - os.getpid() % 1000 * 2, 1024, -2):
        with suppress(CliError):
            for each in (port, port + 1):
                check_port_free("127.0.0.1", each, "a worker", "MEDUSAQ_METRICS_ADDRESS")
            return port
    raise AssertionError("no two ports are free")


def test_both_workers_of_up_show_their_figures_where_a_port_is_set(cli: Cli) -> None:
    port = two_ports()
    up(cli, "--no-flower", MEDUSAQ_METRICS_ADDRESS=f"127.0.0.1:{port}")
    for each, name in ((port, "medusaq_slots"), (port + 1, "medusaq_batch_round_seconds_count")):
        wait_until(lambda each=each: not is_free(each))  # type: ignore[misc]
        assert f"\n{name}{{" in httpx.get(f"http://127.0.0.1:{each}/metrics").text


def test_up_has_a_redis_of_its_own_whatever_other_is_set(cli: Cli) -> None:
    other = {"MEDUSAQ_REDIS_URL": f"rediss://nowhere.invalid:6380/0?ssl_ca_certs={__file__}"}
    running, url = up(cli, "--no-flower", **other)
    assert running.lines[0] == "MEDUSAQ_REDIS_URL is ignored: a local stack starts its own Redis"
    assert httpx.get(f"{url}/readyz").is_success
    running.send(signal.SIGTERM)
    running.wait()


def test_queued_jobs_survive_a_restart_of_up(cli: Cli) -> None:
    few = {"MEDUSAQ_SLOTS": "1", "MEDUSAQ_DRAIN_S": "0"}
    running, url = up(cli, "--no-flower", **few)
    assert not any("Flower" in line for line in running.lines)
    sent = [cli("submit", f"job {n} delay=1", "--url", url).stdout.strip() for n in range(3)]
    file = uploaded(url)
    assert (cli.folder / ".medusaq" / "files" / "files" / file).read_bytes() == b"{}"
    running.send(signal.SIGTERM)
    assert running.wait() == 0
    assert cli.processes() == {}
    _, url = up(cli, "--no-flower", **few)
    for job in sent:
        record = httpx.get(f"{url}/v1/jobs/{job}", headers={"Prefer": "wait=20"}, timeout=30).json()
        assert record["status"] == "succeeded"
    assert httpx.get(f"{url}/v1/files/{file}/content").content == b"{}"


def test_a_killed_up_takes_everything_with_it(cli: Cli) -> None:
    running, url = up(cli, MEDUSAQ_FILES="elsewhere")
    assert len(cli.processes()) >= 6
    assert (cli.folder / "elsewhere" / "files" / uploaded(url)).exists(), "a folder that is named is used"
    running.send(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    cli.gone()
    wait_until(lambda: is_free(port_of(url)))  # a dying process gives its sockets back last


def test_a_model_that_cannot_be_loaded_stops_the_stack(cli: Cli) -> None:
    running = cli.start("up", "--port", "0", "--no-flower", SCRIPTED_LOAD_ERROR="m.gguf is no GGUF")
    assert running.wait() == 3
    assert running.lines[-1] == "error: the model cannot be loaded: m.gguf is no GGUF"
    assert cli.processes() == {}


def test_services_without_redis_say_so_and_serve_once_it_is_there(cli: Cli) -> None:
    redis = RedisServer(cli.folder / "redis")
    port = free_port()
    env = {"MEDUSAQ_REDIS_URL": redis.url, "MEDUSAQ_PORT": str(port)}
    running = [cli.start(service, **env) for service in ("worker", "io", "gateway")]
    for service in running:
        assert service.wait_for(f"warning: Redis at {redis.url} does not answer").endswith("trying on")
    for service in running[:2]:
        service.wait_for("Trying again in 4.00 seconds")
    redis.start()
    try:
        running[2].wait_for("Uvicorn running")
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=20).is_success)
        ended = cli("submit", "at last", "--wait", "--url", url)
        assert (ended.returncode, ended.stdout) == (0, "at last\n")
        assert not any("Traceback" in service.text() for service in running)
        for service in running:
            service.send(signal.SIGTERM)
            service.wait()
    finally:
        redis.stop()


def test_a_gateway_without_redis_starts_and_answers_503(cli: Cli) -> None:
    url, port = f"redis://127.0.0.1:{free_port()}/0", free_port()
    running = cli.start("gateway", MEDUSAQ_REDIS_URL=url, MEDUSAQ_PORT=str(port))
    running.wait_for(f"warning: Redis at {url} does not answer")
    running.wait_for("Uvicorn running")
    ready = httpx.get(f"http://127.0.0.1:{port}/readyz")
    assert (ready.status_code, ready.json()["redis"]) == (503, False)
    running.send(signal.SIGTERM)
    running.wait()


@pytest.mark.parametrize(
    ("service", "env", "code", "message"),
    [
        ("gateway", {"MEDUSAQ_HOST": "0.0.0.0"}, 2, "MEDUSAQ_HOST: 0.0.0.0 is reachable from other machines"),
        ("flower", {"MEDUSAQ_HOST": "0.0.0.0"}, 1, "Flower on 0.0.0.0 without a password"),
        ("worker", {"MEDUSAQ_SLOTS": "many"}, 2, "MEDUSAQ_SLOTS: "),
        ("worker", {**OPEN_FIGURES}, 2, "MEDUSAQ_METRICS_ADDRESS: 0.0.0.0 is reachable from other machines"),
        ("io", {**OPEN_FIGURES}, 2, "MEDUSAQ_METRICS_ADDRESS: 0.0.0.0 is reachable from other machines"),
        ("up", {"MEDUSAQ_PORT": "-1"}, 2, "MEDUSAQ_PORT: "),
    ],
)
def test_settings_that_cannot_be_are_refused(
    cli: Cli, redis_server: RedisServer, service: str, env: dict[str, str], code: int, message: str
) -> None:
    without_keys = {"MEDUSAQ_REDIS_URL": redis_server.url, "MEDUSAQ_KEY_PREFIX": "without-keys:"}
    running = cli.start(service, **without_keys, **env)
    assert running.wait() == code
    assert running.lines[-1].startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("service", "variable"), [("gateway", "MEDUSAQ_PORT"), ("flower", "MEDUSAQ_FLOWER_PORT")]
)
def test_a_service_whose_port_is_taken(cli: Cli, service: str, variable: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        running = cli.start(service, **{variable: str(port)})
        assert running.wait() == 1
    assert f"port {port} of" in running.lines[-1]
    assert running.lines[-1].endswith(f"is in use; choose another with {variable}")


def test_a_state_folder_that_cannot_be_used(cli: Cli) -> None:
    (cli.folder / "file").touch()
    ended = cli("up", "--state-dir", str(Path("file") / "below"), "--port", "0", "--flower-port", "0")
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: cannot use the folder file/below: Not a directory\n",
    )


def test_flower_still_shows_what_it_has_seen_after_a_restart(cli: Cli) -> None:
    cli.env["FLOWER_UNAUTHENTICATED_API"] = "1"
    running, url = up(cli)
    flower = running.wait_for("  Flower   ").split()[-1]

    def seen(job_id: str) -> bool:
        try:
            answer = httpx.get(f"{flower}/api/task/info/{job_id}")
        except httpx.TransportError:
            return False
        return answer.is_success and bool(answer.json()["state"] == "SUCCESS")

    def listens(since: float) -> bool:
        """It has heard of a worker: of events before it subscribes it never knows."""
        try:
            workers = httpx.get(f"{flower}/workers", params={"json": "1"}).json()["data"]
        except httpx.TransportError:
            return False
        return any(beat > since for worker in workers for beat in worker["heartbeats"])

    def saved(job_id: str) -> bool:
        """Not in the file that it renames when all is written."""
        kept = [path for path in (cli.folder / ".medusaq").glob("flower*") if ".tmp" not in path.name]
        return any(job_id.encode() in path.read_bytes() for path in kept)

    wait_until(lambda: listens(0.0))
    first = cli("submit", "hello", "--url", url).stdout.strip()
    wait_until(lambda: seen(first))
    wait_until(lambda: saved(first))
    killed, when = cli.service("flower"), time.time()
    cli.kill(killed)
    running.wait_for("flower ended (killed by SIGKILL)")
    wait_until(lambda: seen(first) and listens(when))

    second = cli("submit", "hello again", "--url", url).stdout.strip()
    wait_until(lambda: seen(second))
    running.send(signal.SIGTERM)
    assert running.wait() == 0
    running, url = up(cli)
    flower = running.wait_for("  Flower   ").split()[-1]
    wait_until(lambda: seen(first) and seen(second))
