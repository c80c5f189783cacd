"""What is read from llama-server's timings, of a server that answers what a test says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.benchmarks.common import ToolFailed
from tests.benchmarks.large.their_drafts import SOURCE, Server

TOO_LONG = "too long"
OF_SLOTS = (
    {"predicted_n": 9, "predicted_ms": 400.0, "draft_n": 6, "draft_n_accepted": 5},
    {"predicted_n": 5, "predicted_ms": 600.0},  # nothing was drafted
)


class Handler(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        refused = body["messages"][0]["content"] == TOO_LONG
        answer = {"error": "context"} if refused else {"timings": OF_SLOTS[body["id_slot"]]}
        self.send_response(400 if refused else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(Handler, "asked", [], raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        server = Server(f"http://127.0.0.1:{listening.server_port}")
        yield server
        server.close()
        listening.shutdown()


def test_decoding_is_timed_after_prompts_were_read_each_in_its_slot(served: Server) -> None:
    found = served.measure(["one", "two"], max_tokens=9)
    asked = sorted(
        (body["max_tokens"], body["id_slot"], body["messages"][0]["content"]) for body in Handler.asked
    )
    assert asked == [(1, 0, "one"), (1, 1, "two"), (9, 0, "one"), (9, 1, "two")]
    assert (found.seconds, found.tokens) == (0.5, 12), "the first token of each is of its prompt"
    assert (found.steps, found.verified, found.accepted) == (7, 6, 5)
    assert (found.verified_of[SOURCE], found.accepted_of[SOURCE]) == (6, 5)


def test_what_it_refuses_is_said(served: Server) -> None:
    with pytest.raises(ToolFailed, match=r"llama-server answered 400: .*context"):
        served.measure([TOO_LONG], max_tokens=9)
