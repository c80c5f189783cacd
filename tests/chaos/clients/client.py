"""A client that repeats what was not answered."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import httpx

PAUSE_S = 0.1  # before a request is repeated


class GaveUp(Exception):
    """A request was refused, or not answered, for too long."""


class Client:
    """Repeats each request until it is answered, under a key where it makes something. For one thread."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._http = httpx.Client(base_url=url, timeout=30)
        self._patience_s = patience_s

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return self._insist("GET", path).json()

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """The content of a file, if there is one."""
        if file_id is None:
            return []
        text = self._insist("GET", f"/v1/files/{file_id}/content").text
        return [json.loads(line) for line in text.splitlines()]

    def post(self, path: str, body: object) -> Any:
        return self._insist("POST", path, json=body, headers={"Idempotency-Key": uuid.uuid4().hex}).json()

    def upload(self, content: bytes) -> str:
        key = {"Idempotency-Key": uuid.uuid4().hex}
        form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", content)}}
        return str(self._insist("POST", "/v1/files", headers=key, **form).json()["id"])

    def _insist(self, method: str, path: str, **how: Any) -> httpx.Response:
        give_up = time.monotonic() + self._patience_s
        while True:
            try:
                answer = self._http.request(method, path, **how)
                if answer.status_code < 500:
                    return answer.raise_for_status()
                why = answer.text
            except httpx.TransportError as error:
                why = repr(error)
            if time.monotonic() > give_up:
                raise GaveUp(f"{method} {path}: {why}")
            time.sleep(PAUSE_S)
