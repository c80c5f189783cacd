"""That what is lost, doubled or wrong is seen."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tasks.store.jobs import JobStore
from tests.chaos.clients.client import Client
from tests.chaos.clients.load import Expected, Order
from tests.chaos.judging.verdict import judged, left, listed

WANTED = {"a": Expected(text="1"), "b": Expected(text="2"), "c": Expected(code="worker_lost")}


def answer(custom_id: str, text: str, model: str = "") -> dict[str, Any]:
    body = {"choices": [{"message": {"content": text}}], "model": model}
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


def failure(custom_id: str, code: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "response": None, "error": {"code": code}}


class Files(Client):
    """A client that has read the output and the error file already."""

    def __init__(self, **files: list[dict[str, Any]]) -> None:
        super().__init__("http://127.0.0.1:1", 0)
        self._files = files

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        return self._files[str(file_id)]


def test_a_line_answered_by_another_model_than_it_named() -> None:
    lines = {"a": Expected(text="1", model="one"), "b": Expected(text="2", model="two")}
    out = [answer("a", "1", "one"), answer("b", "2", "one")]
    client = Files(out=out, errors=[])
    counts = {"total": 2, "completed": 2, "failed": 0}
    record = {"output_file_id": "out", "error_file_id": "errors", "request_counts": counts}
    tally = judged(client, Order("batch_1", lines), record)
    client.close()
    [trouble] = tally.troubles
    assert trouble.startswith("batch_1 b: ")


def test_what_is_left_in_the_queue_of_any_model_is_seen(store: JobStore) -> None:
    """Names in which Redis's patterns could be lost, too."""
    assert left(store) == []
    for key in ("pending:interactive", "pending:bulk:a*[b", "held:owner@a", "interactive_held:owner@a"):
        store.db.redis.zadd(store.db.prefix + key, {"job_1": 1})
    for key in ("outstanding", "held", "interactive_outstanding", "interactive_held"):
        store.db.redis.hset(store.db.prefix + key, "owner@a", 1)
    assert [line.partition(": ")[0] for line in sorted(left(store))] == [
        "left in held",
        "left in held:owner@a",
        "left in interactive_held",
        "left in interactive_held:owner@a",
        "left in interactive_outstanding",
        "left in outstanding",
        "left in pending:bulk:a*[b",
        "left in pending:interactive",
    ]


@pytest.mark.parametrize(
    ("out", "errors", "lost", "doubled", "trouble"),
    [
        ([answer("a", "1"), answer("b", "2")], [failure("c", "worker_lost")], 0, 0, ""),
        ([answer("a", "1")], [failure("c", "worker_lost")], 1, 0, ""),
        ([answer("a", "1"), answer("b", "2"), answer("a", "1")], [failure("c", "worker_lost")], 0, 1, ""),
        ([answer("a", "1"), answer("b", "1")], [failure("c", "worker_lost")], 0, 0, "b: "),
        ([answer("a", "1")], [failure("b", "worker_lost"), failure("c", "worker_lost")], 0, 0, "b: "),
        ([answer("x", "1"), answer("a", "1"), answer("b", "2")], [failure("c", "worker_lost")], 0, 0, "x"),
    ],
)
def test_what_the_files_of_a_batch_say(
    out: list[dict[str, Any]], errors: list[dict[str, Any]], lost: int, doubled: int, trouble: str
) -> None:
    record = {
        "output_file_id": "out",
        "error_file_id": "errors",
        "request_counts": {"total": 3, "completed": 2, "failed": 1},
    }
    client = Files(out=out, errors=errors)
    tally = judged(client, Order("batch_1", WANTED), record)
    client.close()
    assert (tally.submitted, tally.lost, tally.doubled) == (3, lost, doubled)
    assert len(tally.troubles) == bool(trouble)
    assert trouble in "".join(tally.troubles)


class Listing(Client):
    """A client of a gateway that drops the job behind which the second page begins. status: of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__("http://127.0.0.1:1", 0)
        self._status = status

    def get(self, path: str) -> Any:
        if "after" not in path:
            return {"data": [{"id": "job_2"}], "has_more": True, "last_id": "job_2"}
        request = httpx.Request("GET", path)
        return httpx.Response(self._status, request=request).raise_for_status()


def test_a_list_ends_at_a_job_that_has_been_dropped_meanwhile() -> None:
    gone, refused = Listing(400), Listing(403)
    assert listed(gone, "run") == {"job_2"}
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        listed(refused, "run")
    gone.close()
    refused.close()
