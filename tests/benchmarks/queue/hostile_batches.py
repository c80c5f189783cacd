"""How long one key's batch of one line takes beside another key that does its worst with batches."""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from tasks.records.api_key import Limits
from tasks.records.batch import ENDED
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, Running, whole_stack
from tests.support.measuring.report import Report

ENDPOINT = "/v1/completions"
MB = 1_000_000
POLL_S = 0.02
SETTLE_S = 3.0  # until the other key's work is under way
LIMIT_S = 180.0
QUEUED = 10  # batches of the other key that have not ended, at any time
LINES = 50_000  # the most that a file may have
MOST_S = 1.0  # p95 beside any attack


class Key:
    """A client of the gateway with a key of its own."""

    def __init__(self, running: Running, name: str) -> None:
        store = JobStore(running.settings)
        _, secret = KeyStore(store.db).create(name, Limits())
        store.close()
        headers = {"Authorization": f"Bearer {secret}"}
        self._http = httpx.Client(base_url=running.url, headers=headers, timeout=LIMIT_S)

    def upload(self, content: bytes) -> str:
        files = {"file": ("lines.jsonl", content)}
        answer = self._http.post("/v1/files", data={"purpose": "batch"}, files=files)
        return str(answer.raise_for_status().json()["id"])

    def create(self, file_id: str, *, dry_run: bool = False) -> str:
        body = {"input_file_id": file_id, "endpoint": ENDPOINT, "dry_run": dry_run}
        return str(self._http.post("/v1/batches", json=body).raise_for_status().json()["id"])

    def cancel(self, batch_id: str) -> None:
        self._http.post(f"/v1/batches/{batch_id}/cancel").raise_for_status()

    def status(self, batch_id: str) -> str:
        return str(self._http.get(f"/v1/batches/{batch_id}").raise_for_status().json()["status"])

    def wait_s(self, file_id: str) -> float:
        """From the creation of a batch to its end, as a client sees it. Raises BenchmarkFailed."""
        began = time.perf_counter()
        batch_id = self.create(file_id)
        while (status := self.status(batch_id)) not in ENDED:
            if time.perf_counter() - began > LIMIT_S:
                return LIMIT_S
            time.sleep(POLL_S)
        if status != "completed":
            raise BenchmarkFailed(f"{batch_id} is {status}")
        return time.perf_counter() - began


def line(number: int, prompt: str = "hi") -> bytes:
    body = {"prompt": prompt, "max_tokens": 1}
    value = {"custom_id": f"id-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(value).encode() + b"\n"


def newlines() -> bytes:
    return line(0) + b"\n" * 12 * MB


def long_lines() -> bytes:
    """As many bytes as a file may have, in as many lines."""
    return b"".join(line(n, "x" * 3850) for n in range(LINES))


def bad_lines() -> bytes:
    return b'{"custom_id": 1}\n' * LINES


def costly_lines() -> bytes:
    """Of 4 MB each, which hold as many values as a line may."""
    values = ",".join(f'"k{n:0130}":0' for n in range(29_000))
    head = b'{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"x",'
    return b"".join(head % n + values.encode() + b"}}\n" for n in range(40))


def few_lines() -> bytes:
    return b"".join(line(n) for n in range(20))


@contextmanager
def beside(key: Key, content: bytes, *, dry_run: bool, cancel: bool, queued: int = QUEUED) -> Iterator[None]:
    """While the key always has so many batches of this file that have not ended."""
    stop = threading.Event()
    failed: list[Exception] = []

    def attack() -> None:
        file_id = key.upload(content)
        live: list[str] = []
        while not stop.is_set():
            while len(live) < queued and not stop.is_set():
                live.append(key.create(file_id, dry_run=dry_run))
                if cancel:
                    key.cancel(live[-1])
            live = [batch_id for batch_id in live if key.status(batch_id) not in ENDED]
            stop.wait(POLL_S)

    def run() -> None:
        try:
            attack()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    stop.wait(SETTLE_S + len(content) / (20 * MB))
    try:
        yield
    finally:
        stop.set()
        thread.join(LIMIT_S)
    if failed:
        raise BenchmarkFailed(f"the other key: {failed[0]}")


Attack = tuple[Callable[[], bytes], dict[str, bool | int]]
ATTACKS: dict[str, Attack] = {
    "dry runs over 12 MB of newlines, cancelled at once": (newlines, {"dry_run": True, "cancel": True}),
    "dry runs over 200 MB in 50,000 lines": (long_lines, {"dry_run": True, "cancel": False}),
    "200 MB in 50,000 lines, cancelled at once": (long_lines, {"dry_run": False, "cancel": True}),
    "50,000 lines that are refused": (bad_lines, {"dry_run": False, "cancel": False}),
    "dry runs over lines of 4 MB and 29,000 values": (costly_lines, {"dry_run": True, "cancel": False}),
    "300 batches of 20 lines at a time": (few_lines, {"dry_run": False, "cancel": False, "queued": 300}),
}


def hostile(options: argparse.Namespace, report: Report) -> None:
    """A batch of one line, alone and beside each of the attacks. Raises BenchmarkFailed above MOST_S."""
    slow = []
    with report.table("hostile-batches", "beside another key's batches", "p50", "p95", "longest") as table:
        for name, attack in (("alone", None), *ATTACKS.items()):
            waits = _waits(attack, options.batches)
            cuts = statistics.quantiles(waits, n=100, method="inclusive")
            table.row(name, *(f"{seconds:.2f} s" for seconds in (cuts[49], cuts[94], max(waits))))
            if cuts[94] > MOST_S:
                slow.append(name)
        table.note(
            f"A batch of one line, from create to its end, {options.batches} times; the other key always has "
            f"{QUEUED} batches that have not ended, or as many as said."
        )
        if slow:
            raise BenchmarkFailed(f"p95 above {MOST_S} s: {'; '.join(slow)}")


def _waits(attack: Attack | None, batches: int) -> list[float]:
    """Seconds of each batch, on a stack of its own."""
    with whole_stack() as running:
        honest, other = Key(running, "honest"), Key(running, "other")
        file_id = honest.upload(line(0))
        honest.wait_s(file_id)
        if attack is None:
            return [honest.wait_s(file_id) for _ in range(batches)]
        content, how = attack
        with beside(other, content(), **how):  # type: ignore[arg-type]
            return [honest.wait_s(file_id) for _ in range(batches)]
