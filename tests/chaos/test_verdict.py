"""That what is lost, doubled or wrong is seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.load import Client, Expected, Order
from tests.chaos.verdict import judged

WANTED = {"a": Expected(text="1"), "b": Expected(text="2"), "c": Expected(code="worker_lost")}


def answer(custom_id: str, text: str) -> dict[str, Any]:
    body = {"choices": [{"message": {"content": text}}]}
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
