"""Lines of segments: what is in the output file, to the byte."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from common.json_text import compact
from tasks.batches.segments import RESULT
from tasks.schema.batch_output import ended_early, failed, number_of, succeeded, without_answer

USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 1,
    "total_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 0},
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(1, 10**9)


def record(text: str, **request: Any) -> dict[str, Any]:
    result = {"text": text, "finish_reason": "stop", "logprobs": None, "usage": USAGE, "speculation": None}
    return {
        "id": "job_ab-7",
        "created_at": 2.5,
        "model": "m",
        "request": {"prompt": "p", **request},
        "result": result,
    }


def of(line: str) -> tuple[int, bool, Any]:
    """Its number, whether it failed, and its entry, which is written as Python writes JSON, on one line."""
    parts = RESULT.fullmatch(line.encode())
    assert parts is not None
    assert parts[3].decode() == compact(json.loads(parts[3]))
    assert number_of(line) == int(parts[1])
    return int(parts[1]), parts[2] == b"true", json.loads(parts[3])


@given(numbers, texts, texts)
def test_an_answer(number: int, custom_id: str, text: str) -> None:
    got, is_failed, entry = of(succeeded(number, compact(custom_id), record(text)))
    assert (got, is_failed) == (number, False)
    assert list(entry) == ["id", "custom_id", "response", "error"]
    assert (entry["id"], entry["custom_id"], entry["error"]) == ("batch_req_ab-7", custom_id, None)
    response = entry["response"]
    assert (response["status_code"], response["request_id"]) == (200, "job_ab-7")
    assert response["body"]["choices"][0]["message"]["content"] == text
    assert response["body"]["usage"] == USAGE


@given(numbers, texts, texts, texts)
def test_an_error(number: int, custom_id: str, message: str, partial: str) -> None:
    error = {"code": "incomplete", "message": message, "param": None}
    shown = {**error, "line": number} | ({"partial": partial} if partial else {})
    expected = {"id": "batch_req_ab-7", "custom_id": custom_id, "response": None, "error": shown}
    assert of(failed(number, compact(custom_id), record(""), error, partial)) == (number, True, expected)
    expected["error"] = {"code": "batch_expired", "message": message, "param": None, "line": number}
    early = ended_early("job_ab-7", number, compact(custom_id), "batch_expired", message)
    assert of(early) == (number, True, expected)


def test_a_refusal_is_a_response() -> None:
    error = {"code": "invalid_request", "message": "prompt is empty", "param": "prompt"}
    _, is_failed, entry = of(failed(7, '"a"', record(""), error, "unseen"))
    assert (is_failed, entry["error"], entry["response"]["status_code"]) == (True, None, 400)
    assert entry["response"]["body"]["error"]["code"] == "invalid_request"


def test_a_line_without_an_id_of_its_own() -> None:
    error = {"code": "duplicate_custom_id", "line": 7, "message": "m", "param": "custom_id"}
    _, is_failed, entry = of(without_answer("job_ab-7", 7, "null", error))
    assert (is_failed, entry["custom_id"], entry["error"]) == (True, None, error)
