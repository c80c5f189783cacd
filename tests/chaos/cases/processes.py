"""Cases in which processes are killed, stopped, held up or replaced."""

from __future__ import annotations

import itertools
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from tasks.records.batch import BatchStatus
from tests.chaos.cases.case import CASES, case
from tests.chaos.clients.following import Follower
from tests.chaos.clients.load import Expected, Order, line
from tests.chaos.run import Run, Skipped
from tests.chaos.stack import GATEWAY, IO, OTHER
from tests.support.workers import Worker, can_contain

# A fifth of the usual lease, and of what follows from it. For machines that are not overcommitted: a worker
# that gets no processor for two seconds loses its jobs.
FAST_PROFILE: dict[str, object] = {"lease_ms": 2000}
LATE = "not ours any more"  # what a worker says of a result that it may not write
HALF = "half.jsonl"  # name of an upload that breaks off
VALID_EVERY = 100  # lines of a large file: the others are refused, which costs no engine
REFUSED = Expected(code="invalid_value")
CONTAINED = "contained"
AT_ONCE = 30  # jobs: more than one worker takes
TRIES = 10  # to catch an io worker at what it does for moments only
MOST_LINES = 48_000  # of a file, below the limit of a batch
SEEN_LINES = 1000
STANDBY = "standby"  # a second io worker
LEADS_NOT = "another io worker leads"
ENDS = (0,)  # exit codes
ENDS_BY_SIGNAL = (0, -signal.SIGTERM)  # uvicorn closes everything, and then lets the signal end it


@case("kill-worker", "kill -9 of a model worker, in a loop", limit_s=10.0)
def kill_worker(run: Run) -> None:
    with run.under_load():
        for name in in_turns(run, run.size.strikes):
            run.strike(lambda name=name: run.stack.kill(name))


CASES["kill-worker-fast"] = replace(
    CASES["kill-worker"],
    name="kill-worker-fast",
    title="the same with the fast profile",
    profile=FAST_PROFILE,
    limit_s=5.0,
)


@case("kill-other", "kill -9 of the only worker of a model beside another", limit_s=15.0)
def kill_other(run: Run) -> None:
    """Its jobs wait for it; those of the other model do not."""

    def away() -> None:
        run.stack.hold(OTHER)
        run.stack.kill(OTHER)
        waits = run.load.job(run.client, "delay=0", model=run.stack.other)
        others = run.load.job(run.client, "delay=0")
        run.wait(lambda: run.has_ended(others), "the first model's jobs wait, too")
        if run.has_ended(waits):
            run.troubles.append("a job was not run by the model that it names")
        run.stack.start(OTHER)

    with run.under_load():
        for _ in range(run.size.strikes):
            run.is_busy(OTHER)
            run.strike(away)


@case("kill-contained", "kill -9 of a model's only worker, back at once under its old name", limit_s=15.0)
def kill_contained(run: Run) -> None:
    """As by a container's restart policy: long before the lease of the killed one has run out, there is
    another with its host name, process id and node name.
    """
    if not can_contain():
        raise Skipped("no namespaces of host names and processes: no process can have the name of another")
    stack = run.stack
    stack.hold(OTHER)
    stack.kill(OTHER)
    stack.add_model(CONTAINED, env={"SCRIPTED_MODEL": OTHER}, contained=True)
    with run.under_load():
        for _ in range(run.size.strikes):
            script = f"delay={run.size.delay_s}"
            jobs = [run.load.job(run.client, script, model=stack.other) for _ in range(AT_ONCE)]
            run.is_busy(CONTAINED)
            run.strike(lambda: stack.kill(CONTAINED))
            run.wait(lambda jobs=jobs: all(map(run.has_ended, jobs)), "jobs wait for the killed worker")
    stack.remove_killed(CONTAINED)
    stack.start(OTHER)


@case("kill-io-reading", "kill -9 of the io worker while it reads a file")
def kill_io_reading(run: Run) -> None:
    for _ in range(run.size.strikes):
        _strike_io_at(run, partial(_is_reading, run), lambda: run.stack.kill(IO))


@case("kill-io-finalizing", "kill -9 of the io worker while it writes the output")
def kill_io_finalizing(run: Run) -> None:
    for _ in range(run.size.strikes):
        _strike_io_at(run, partial(_is_finalizing, run), lambda: run.stack.kill(IO))


@case("two-leaders", "an io worker that was frozen as it led, and goes on while another leads")
def two_leaders(run: Run) -> None:
    stack = run.stack

    def goes_on() -> None:
        frozen, worker = _leader(run), stack.worker(IO)
        said = worker.text().count(LEADS_NOT)
        run.wait(lambda: _leader(run) not in (frozen, None), "nobody took the lead")
        worker.process.send_signal(signal.SIGCONT)
        run.wait(partial(_more_said, worker, LEADS_NOT, said), "it did not notice that another leads")

    for _ in range(run.size.strikes):
        ours = _only_leader(run)
        stack.add_io(STANDBY)
        _strike_io_at(run, lambda order, ours=ours: _leader(run) == ours and _is_reading(run, order), goes_on)
        stack.remove(STANDBY)


@case("kill-gateway-upload", "kill -9 of the gateway in the middle of an upload")
def kill_gateway_upload(run: Run) -> None:
    with run.under_load():
        for _ in range(run.size.strikes):
            content, wanted = _large(run.size.large)
            with _half_sent(run, content) as connection:
                run.strike(lambda: run.stack.kill(GATEWAY))
                if _heard(connection):
                    run.troubles.append("half an upload was answered, so the kill met none")
            run.load.order(run.client, run.client.upload(content), wanted)
    if any(file["filename"] == HALF for file in run.client.get("/v1/files?limit=100")["data"]):
        run.troubles.append("a broken-off upload became a file")


@case("kill-gateway-stream", "kill -9 of the gateway while it streams answers")
def kill_gateway_stream(run: Run) -> None:
    with run.under_load():
        for _ in range(run.size.strikes):
            followers = [Follower(run.load, online) for online in (False, True)]
            for follower in followers:
                run.wait(lambda follower=follower: follower.pieces >= 3, "no stream came up")
            run.strike(lambda: run.stack.kill(GATEWAY))
            for follower in followers:
                run.troubles += follower.join_and_tell()


@case("stale-worker", "a worker held up for longer than its lease, which then goes on")
def stale_worker(run: Run) -> None:
    refused = 0
    with run.under_load():
        for name in in_turns(run, run.size.strikes):
            worker = run.stack.worker(name)

            said = worker.text().count(LATE)
            run.strike(partial(_hold_up, run, name))
            late = partial(_more_said, worker, LATE, said)
            run.wait(late, "it wrote what was not its own")
            refused += worker.text().count(LATE) - said
    run.notes.append(f"late results refused: {refused}")


@case("poison", "a prompt that kills its worker, alone and in a batch")
def poison(run: Run) -> None:
    dies, lost = "die=1", Expected(code="worker_lost")
    with run.under_load():
        for in_batch in (True, False) * run.size.strikes:

            def until_given_up(in_batch: bool = in_batch) -> None:
                if in_batch:
                    order = run.load.batch(run.client, run.size.lines, [(dies, lost)])
                    run.wait(lambda: run.failed(order.id) > 0, "the poison was not given up")
                else:
                    job_id = run.load.submit(run.client, dies, lost)
                    run.wait(lambda: run.record(job_id)["status"] == "failed", "the poison was not given up")

            run.strike(until_given_up)


@case("sigterm", "SIGTERM of everything under load, Redis too, and a new start")
def sigterm(run: Run) -> None:
    stack = run.stack

    def down_and_up() -> None:
        with ThreadPoolExecutor() as pool:
            codes = dict(zip(stack.services, pool.map(stack.stop, stack.services), strict=True))
        if any(code not in (ENDS_BY_SIGNAL if name == GATEWAY else ENDS) for name, code in codes.items()):
            run.troubles.append(f"exit codes {codes}")
        stack.redis.stop()
        stack.redis.start()
        for name in stack.services:
            stack.start(name)

    with run.under_load():
        for _ in range(run.size.strikes):
            run.outage(down_and_up)


@case("rolling", "a rolling replacement of the model workers")
def rolling(run: Run) -> None:
    def replaced(old: str) -> None:
        run.stack.add_model(f"{old}n")
        run.stack.wait_ready()
        run.stack.remove(old)

    before = len(run.load.accepted.jobs)
    with run.under_load():
        for _ in range(run.size.strikes):
            run.strike(lambda: replaced(run.stack.models[0]))
    if run.attempts(before) > 1:
        run.troubles.append("a replaced worker cost jobs an attempt")


def _more_said(worker: Worker, words: str, before: int) -> bool:
    return worker.text().count(words) > before


def _hold_up(run: Run, name: str) -> None:
    """Until others have all that it stood still with."""
    held: list[str] = []
    while not held and run.is_busy(name):
        with run.stack.paused(name):
            held = run.jobs_of(name)
            run.wait(partial(_has_lost, run, name, held), "its jobs went nowhere")


def _has_lost(run: Run, name: str, jobs: list[str]) -> bool:
    return not set(jobs) & set(run.jobs_of(name))


def in_turns(run: Run, strikes: int) -> Iterator[str]:
    """The workers of the first model that so many strikes meet, each once all of them have work: the one that
    was killed last is there again, and can take over.
    """
    for name in itertools.islice(itertools.cycle(run.stack.models), strikes):
        for each in run.stack.models:
            run.is_busy(each)
        yield name


def _order_large(run: Run, lines: int) -> Order:
    content, wanted = _large(lines)
    return run.load.order(run.client, run.client.upload(content), wanted)


def _large(lines: int) -> tuple[bytes, dict[str, Expected]]:
    """A file of this many lines, and what is expected of it."""
    parts, wanted = [], {}
    for n in range(lines):
        custom_id, valid = f"line-{n}", n % VALID_EVERY == 0
        parts.append(line(custom_id, {"prompt": custom_id if valid else n}))
        wanted[custom_id] = Expected(text=custom_id) if valid else REFUSED
    return b"".join(parts), wanted


def _leader(run: Run) -> str | None:
    token: str | None = run.stack.store.db.redis.get(f"{run.stack.store.db.prefix}led_by")
    return token


def _only_leader(run: Run) -> str | None:
    """Once it has ended a batch: the lead of one that was killed before outlives it for seconds."""
    order = _order_large(run, 1)
    run.wait(lambda: _is_over(run, order), "no io worker leads")
    return _leader(run)


def _is_reading(run: Run, order: Order) -> bool:
    key = f"{run.stack.store.db.prefix}batch:{order.id}"
    status, total = run.stack.store.db.redis.hmget(key, "status", "total")
    return status == BatchStatus.VALIDATING and int(total) >= SEEN_LINES


def _is_finalizing(run: Run, order: Order) -> bool:
    return run.status_of(order.id) == BatchStatus.FINALIZING


def _strike_io_at(run: Run, at: Callable[[Order], bool], fault: Callable[[], object]) -> None:
    """Held up first, so that it is at it for certain when it is struck. A machine that is through with a file
    before anybody sees it gets one twice as long.
    """
    lines = run.size.large
    with run.under_load():
        for _ in range(TRIES):
            order = _order_large(run, lines)
            run.wait(lambda order=order: at(order) or _is_over(run, order), "no batch came so far")
            with run.stack.paused(IO):
                if at(order):
                    run.strike(fault)
                    return
            lines = min(2 * lines, MOST_LINES)
    run.troubles.append("the io worker was never caught at it")


def _is_over(run: Run, order: Order) -> bool:
    return run.status_of(order.id) == BatchStatus.COMPLETED


def _half_sent(run: Run, content: bytes) -> socket.socket:
    """The connection over which half of an upload has come, and has been written."""
    host, port = run.stack.url.removeprefix("http://").split(":")
    head = b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += b'--B\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n' % HALF.encode()
    length = len(head) + len(content) + len(b"\r\n--B--\r\n")
    form = f"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: {length}\r\n"
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\n{form}\r\n".encode() + head)
    connection.sendall(content[: len(content) // 2])
    partial = Path(run.stack.settings.files, ".partial")
    run.wait(lambda: partial.is_dir() and any(partial.iterdir()), "the upload did not begin")
    return connection


def _heard(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1000)
    except ConnectionError:
        return b""
