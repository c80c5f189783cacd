"""Records and refusals as lines of OpenAI's batch output format, and how they are counted."""

from __future__ import annotations

from typing import Any

import pytest

from cli import results
from cli.fleet import Fleet
from cli.progress import Speed, duration
from cli.prompts import PromptLine
from cli.tally import Tally
from tasks.requests import Problem

LINE = PromptLine(4, 9, "mine", {"prompt": "x"})
RAW = {"prompt": "x", "raw": True}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3},
}
SPECULATION = {
    "steps": 1,
    "tokens_per_step": 2.0,
    "sources": {"medusa": {"verified": 3, "accepted": 1, "acceptance": 1 / 3}},
}
TOKENS = [
    {"token_id": 1, "token": "é", "logprob": -0.5, "top": [{"token_id": 1, "token": "é", "logprob": -0.5}]},
    {"token_id": 2, "token": "b", "logprob": -1.5, "top": []},
    {"token_id": 3, "token": "\ufffd", "bytes": [0xF0, 0x9F], "logprob": -2.5, "top": []},
    {"token_id": 4, "token": "\ufffd", "bytes": [0x8C, 0xB1], "logprob": -0.25, "top": []},
]


def record(status: str = "succeeded", **fields: Any) -> dict[str, Any]:
    result = {
        "text": "éb",
        "finish_reason": "stop",
        "usage": USAGE,
        "logprobs": None,
        "timing": {},
        "speculation": SPECULATION,
    }
    base = {
        "id": "job_1f",
        "status": status,
        "model": None,
        "request": {"prompt": "x"},
        "created_at": 12.5,
        "result": result,
        "error": None,
    }
    return {**base, **fields}


def of_an_older_worker() -> dict[str, Any]:
    """A record whose result does not tell its steps."""
    old = record()
    del old["result"]["speculation"]
    return old


def test_a_chat_completion() -> None:
    assert results.finished(LINE, record(), "served") == {
        "id": "batch_req_5",
        "custom_id": "mine",
        "response": {
            "status_code": 200,
            "request_id": "job_1f",
            "body": {
                "id": "chatcmpl-1f",
                "object": "chat.completion",
                "created": 12,
                "model": "served",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "éb", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": USAGE,
                "speculation": SPECULATION,
            },
        },
        "error": None,
    }


def test_a_raw_line_is_a_text_completion() -> None:
    body = results.finished(LINE, record(model="asked for", request=RAW), "served")["response"]["body"]
    assert (body["id"], body["object"], body["model"]) == ("cmpl-1f", "text_completion", "asked for")
    assert body["choices"] == [{"index": 0, "text": "éb", "logprobs": None, "finish_reason": "stop"}]


def test_logprobs_in_both_shapes() -> None:
    with_logprobs = record()
    with_logprobs["result"]["logprobs"] = TOKENS
    first = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    chat = results.finished(LINE, with_logprobs, None)["response"]["body"]["choices"][0]["logprobs"]
    assert chat["content"][0] == {**first, "top_logprobs": [first]}
    assert chat["content"][1]["top_logprobs"] == []
    assert chat["content"][2]["bytes"] == [0xF0, 0x9F], "a part of a character"
    with_logprobs["request"] = RAW
    assert results.finished(LINE, with_logprobs, None)["response"]["body"]["choices"][0]["logprobs"] == {
        "tokens": ["é", "b", "\ufffd", "\ufffd"],
        "token_logprobs": [-0.5, -1.5, -2.5, -0.25],
        "top_logprobs": [{"é": -0.5}, {}, {}, {}],
        "text_offset": [0, 1, 2, 2],
    }


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (
            record("failed", result=None, error={"code": "worker_lost", "message": "m", "param": None}),
            {"code": "worker_lost", "message": "m", "param": None, "request_id": "job_1f"},
        ),
        (
            record("cancelled"),
            {
                "code": "job_cancelled",
                "message": "the job was cancelled",
                "request_id": "job_1f",
                "partial": "éb",
            },
        ),
        (
            record("expired", result=None),
            {
                "code": "job_expired",
                "message": "its deadline passed before it ended",
                "request_id": "job_1f",
            },
        ),
    ],
)
def test_jobs_that_did_not_succeed(ended: dict[str, Any], error: dict[str, Any]) -> None:
    line = results.finished(LINE, ended, None)
    assert (line["response"], line["error"]) == (None, error)


def test_a_refusal_keeps_the_gateways_words() -> None:
    error = {"message": "m", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    line = results.refused(LINE, 404, "key", error)
    assert line["response"] == {"status_code": 404, "request_id": "key", "body": {"error": error}}
    assert results.error_code(line) == "model_not_found"
    assert results.error_code(results.refused(LINE, 413, "key", {"message": "m"})) == "http_413"


def test_an_invalid_line_names_its_number_and_all_its_problems() -> None:
    bad = PromptLine(0, 7, None, {}, (Problem("must be x", "a.b"), Problem("odd", code="other")))
    assert results.invalid(bad) == {
        "id": "batch_req_1",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_value", "message": "a.b: must be x; odd", "param": "a.b", "line": 7},
    }


def test_the_tally_counts_each_line_once() -> None:
    tally = Tally()
    assert tally.tokens_per_step is None
    for line in (
        results.finished(LINE, record(), None),
        results.finished(LINE, of_an_older_worker(), None),
        results.refused(LINE, 400, "key", {"code": "c", "message": "m"}),
    ):
        tally.add(line)
    assert (tally.requests, tally.failed, dict(tally.failures)) == (3, 1, {"c": 1})
    assert (tally.prompt_tokens, tally.cached_tokens, tally.generated_tokens) == (10, 6, 4)
    assert tally.tokens_per_step == 2.0


def model(*workers: tuple[str, float, float]) -> list[dict[str, Any]]:
    details = [
        {"id": name, "metrics": {"steps_total": steps, "batch_occupancy": mean}}
        for name, steps, mean in workers
    ]
    return [{"id": "m", "slots": 4 * len(workers), "workers_detail": details}]


def test_occupancy_is_that_of_the_steps_during_the_run() -> None:
    fleet = Fleet()
    fleet.begin(model(("a", 100, 0.1)))
    assert (fleet.slots, fleet.only_model, fleet.occupancy()) == (4, "m", None)
    fleet.update(model(("a", 200, 0.5)))  # 100 steps at 0.9
    assert fleet.occupancy() == pytest.approx(0.9)
    fleet.update(model(("b", 100, 0.3)))  # a has left, b came later: both count
    assert fleet.occupancy() == pytest.approx(0.6)


def test_a_fleet_without_workers_knows_nothing() -> None:
    fleet = Fleet()
    fleet.begin([])
    assert (fleet.slots, fleet.only_model, fleet.occupancy()) == (0, None, None)


def test_speed_is_that_of_the_last_half_minute() -> None:
    speed = Speed(0.0)
    assert speed.per_second() == (0.0, 0.0)
    for second in range(1, 101):
        speed.note(float(second), tokens=max(0, second - 50) * 10, ended=second)
    assert speed.per_second() == pytest.approx((10.0, 1.0))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12, "12 s"), (72.4, "1 min 12 s"), (11_100, "3 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
