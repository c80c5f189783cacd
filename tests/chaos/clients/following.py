"""A client that reads a stream while the gateway goes away under it."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any

import httpx

from tests.chaos.clients.load import Expected, Load

WORDS = 40
SECONDS = 4
AGAIN_S = 0.1
LIMIT_S = 120.0


class Follower(threading.Thread):
    """Reads the events of a job, again after each break; or once, as an online completion.

    An online one cannot be opened again: its job must end all the same.
    """

    def __init__(self, load: Load, online: bool) -> None:
        super().__init__(name="follower", daemon=True)
        self._load, self._online = load, online
        self.pieces = 0
        self._text = ""
        self._troubles: list[str] = []
        self._given_up = threading.Event()
        self._client = load.client()
        self._word = f"stream{load.run}"
        self._prompt = f"delay={SECONDS} stream={WORDS} {self._word}"
        if not online:
            self._job = load.submit(self._client, self._prompt, self._expected)
        self.start()

    @property
    def _expected(self) -> Expected:
        return Expected(text=f"{self._word} " * WORDS)

    def join_and_tell(self, limit_s: float = LIMIT_S) -> list[str]:
        """What was wrong, once it is over, or should have been for long."""
        self.join(limit_s)
        self._given_up.set()
        self._client.close()
        still = [f"no end of the stream of {self._prompt!r} came"] if self.is_alive() else []
        return self._troubles + still

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._load.url, timeout=30) as http:
                if self._online:
                    self._read_completion(http)
                else:
                    while not (self._read_events(http) or self._given_up.wait(AGAIN_S)):
                        pass
        except Exception as error:  # it must not end unseen
            self._troubles.append(f"the stream of {self._prompt!r} broke off: {error!r}")

    def _read_completion(self, http: httpx.Client) -> None:
        body = {"prompt": self._prompt, "stream": True}
        with suppress(httpx.TransportError), http.stream("POST", "/v1/completions", json=body) as response:
            for data in _data(response):
                if not self.pieces:
                    job_id = "job_" + data["id"].partition("-")[2]
                    self._load.accepted.jobs[job_id] = self._expected
                self.pieces += 1
        if not self.pieces:
            self._troubles.append(f"there was no stream of {self._prompt!r}")

    def _read_events(self, http: httpx.Client) -> bool:
        """Whether the end came. Each connection tells the whole text from its beginning."""
        before, self._text = self._text, ""
        with suppress(httpx.TransportError), http.stream("GET", f"/v1/jobs/{self._job}/events") as response:
            for data in _data(response):
                if "text" in data:
                    self._text += data["text"]
                    self.pieces += 1
                elif "result" in data:
                    if not self._text == data["result"]["text"] == self._expected.text:
                        self._troubles.append(f"the stream of {self._job} said {self._text!r}")
                    return True
                if not before.startswith(self._text) and not self._text.startswith(before):
                    self._troubles.append(f"the stream of {self._job} began again with another text")
        return False


def _data(response: httpx.Response) -> Any:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
