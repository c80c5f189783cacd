"""The honest key's requests, timed: each kind at a steady rate on a thread and a connection of its own."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from tasks.records.batch import ENDED, BatchStatus
from tests.chaos.clients.load import line
from tests.support.peers.receivers import Receiver

LIMIT_S = 60.0  # of a request
LOOK_S = 0.02
ENGINE_S = 0.02  # for each prompt
FILE = b"x" * 65_536
STREAMED = 20  # tokens


@dataclass
class Served:
    """Of one phase: by kind of request the seconds that each took, and what was wrong."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


class Honest:
    """A client with this key. receiver: of its webhooks."""

    def __init__(self, url: str, key: str, receiver: Receiver) -> None:
        self._receiver = receiver
        self._open = {"base_url": url, "headers": {"Authorization": f"Bearer {key}"}, "timeout": LIMIT_S}
        self._words = (f"w{n}" for n in itertools.count())
        with self._client() as http:
            self._file = _uploaded(http, line("only", {"prompt": f"delay={ENGINE_S} once"}))
        # By name what is done and how often in a second.
        self._kinds: dict[str, tuple[Callable[[httpx.Client], None], float]] = {
            "job": (self._job, 5.0),
            "stream": (self._stream, 2.0),
            "webhook": (self._webhook, 2.0),
            "batch": (self._batch, 2.0),
            "upload": (self._upload, 2.0),
            "list": (self._list, 2.0),
        }

    def phase(self, seconds: float) -> Served:
        """All kinds at once for so long, and until the last of them is answered."""
        served = Served({name: [] for name in self._kinds})
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._repeat, args=(name, until, served)) for name in self._kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return served

    def settled(self, limit_s: float) -> bool:
        """Waits until jobs and batches take no longer than they do alone; whether they came to."""
        give_up = time.monotonic() + limit_s
        with self._client() as http:
            while time.monotonic() < give_up:
                began = time.monotonic()
                with suppress(httpx.HTTPError, AssertionError):
                    self._job(http)
                    self._batch(http)
                    if time.monotonic() - began < 2.0:
                        return True
                time.sleep(LOOK_S)
        return False

    def _client(self) -> httpx.Client:
        return httpx.Client(**self._open)  # type: ignore[arg-type]

    def _repeat(self, name: str, until: float, served: Served) -> None:
        act, per_s = self._kinds[name]
        due = time.monotonic()
        with self._client() as http:
            while time.monotonic() < until:
                time.sleep(max(0.0, due - time.monotonic()))
                began = time.monotonic()
                try:
                    act(http)
                except Exception as error:  # it must not end unseen
                    served.troubles.append(f"{name}: {error!r}")
                served.took_s[name].append(time.monotonic() - began)
                due = max(due + 1 / per_s, time.monotonic())

    # Kinds of requests; each raises when it is refused or answered wrongly

    def _job(self, http: httpx.Client) -> None:
        word = next(self._words)
        body = {"prompt": f"delay={ENGINE_S} {word}"}
        record = _good(http.post("/v1/jobs", json=body, headers={"Prefer": "wait=60"})).json()
        assert record["result"]["text"] == word, record

    def _stream(self, http: httpx.Client) -> None:
        word = next(self._words)
        said = [{"role": "user", "content": f"delay={ENGINE_S} stream={STREAMED} {word}"}]
        text = ""
        with http.stream("POST", "/v1/chat/completions", json={"messages": said, "stream": True}) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
            for data in _good(response).iter_lines():
                if data.startswith("data: {"):
                    for choice in json.loads(data.removeprefix("data: "))["choices"]:
                        text += choice["delta"].get("content") or ""
        assert text.split() == [word] * STREAMED, text

    def _webhook(self, http: httpx.Client) -> None:
        body = {"prompt": f"delay={ENGINE_S} hook", "webhook": {"url": self._receiver.url}}
        job_id = _good(http.post("/v1/jobs", json=body)).json()["id"]
        delivery_id = f"evt_{job_id.partition('_')[2]}"
        give_up = time.monotonic() + LIMIT_S
        while not (got := self._heard(delivery_id)):
            assert time.monotonic() < give_up, f"{job_id}: no webhook"
            time.sleep(LOOK_S / 4)
        assert got == 1, f"{job_id}: {got} webhooks"

    def _heard(self, delivery_id: str) -> int:
        return sum(got.headers["webhook-id"] == delivery_id for got in reversed(self._receiver.got))

    def _batch(self, http: httpx.Client) -> None:
        asked = {"input_file_id": self._file, "endpoint": "/v1/jobs", "completion_window": "24h"}
        batch = _good(http.post("/v1/batches", json=asked)).json()
        give_up = time.monotonic() + LIMIT_S
        while batch["status"] not in ENDED:
            assert time.monotonic() < give_up, batch
            time.sleep(LOOK_S)
            batch = _good(http.get(f"/v1/batches/{batch['id']}")).json()
        assert batch["status"] == BatchStatus.COMPLETED, batch
        assert batch["request_counts"]["completed"] == 1, batch

    def _upload(self, http: httpx.Client) -> None:
        _uploaded(http, FILE)

    def _list(self, http: httpx.Client) -> None:
        assert len(_good(http.get("/v1/jobs?limit=20")).json()["data"]) <= 20


def _uploaded(http: httpx.Client, content: bytes) -> str:
    form = {"purpose": "batch"}
    return str(_good(http.post("/v1/files", data=form, files={"file": ("f.jsonl", content)})).json()["id"])


def _good(response: httpx.Response) -> httpx.Response:
    assert response.is_success, f"{response.status_code}: {response.text[:200]}"
    return response
