"""Where answers part, with a real gateway and worker, whose tokens are 0, 1, 2 and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from cli.reports.difference import find_difference
from tests.support.scripted import OTHER

pytestmark = [pytest.mark.slow, pytest.mark.stack]

PLAIN = range(12)
TIE = f"tokens={len(PLAIN)} gap=0.25"
NEAR = 'differs from token 12 on: "y" instead of "x11", log-probabilities 0.25 apart'


def found(url: str, prompt: str, plain: Sequence[int], other: Sequence[int], **fields: Any) -> str:
    body = {"prompt": prompt, "max_tokens": 30, "decoding": "medusa", "return_token_ids": True, **fields}
    return str(find_difference(url, body, plain, other))


@pytest.mark.parametrize(
    ("prompt", "plain", "other", "expected"),
    [
        (TIE, PLAIN, [*PLAIN[:11], OTHER], NEAR),
        (TIE, PLAIN, [*PLAIN[:11], OTHER, 5, 5], NEAR),
        (TIE, [*PLAIN[:11], OTHER], PLAIN, NEAR.replace('"y" instead of "x11"', '"x11" instead of "y"')),
        (
            TIE,
            PLAIN,
            [*PLAIN[:11], 77],
            'differs from token 12 on: token id 77 instead of "x11", not both among the 20 likeliest tokens',
        ),
        (TIE, PLAIN, PLAIN[:11], "differs from token 12 on: one answer ended there"),
        (
            TIE,
            [5, *PLAIN],
            [5, OTHER],
            "differs from token 2 on: log-probabilities unknown: a second plain answer was another one",
        ),
        (
            "tokens=1",
            PLAIN,
            [*PLAIN[:11], OTHER],
            "differs from token 12 on: log-probabilities unknown: a second plain answer was another one",
        ),
        (
            "fail=odd_one",
            [1],
            [2],
            "differs from token 1 on: log-probabilities unknown: odd_one: as the script says",
        ),
    ],
)
def test_the_first_token_that_differs_and_how_near_it_was(
    gateway: str, prompt: str, plain: Sequence[int], other: Sequence[int], expected: str
) -> None:
    assert found(gateway, prompt, plain, other) == expected


def test_plain_decoding_goes_as_far_as_the_difference(gateway: str) -> None:
    """Past what ended the answers, which may be the very token; JSON that is cut off there will do."""
    ended = {"stop": "end", "stop_token_ids": [11], "response_format": {"type": "json_object"}}
    assert found(gateway, f"{TIE} needs=20", PLAIN, [*PLAIN[:11], OTHER], **ended) == NEAR
    [job] = httpx.get(f"{gateway}/v1/jobs", params={"limit": 1}).json()["data"]
    assert (job["status"], job["error"]["code"]) == ("failed", "incomplete")
    sent = {"decoding": "normal", "max_tokens": 12, "logprobs": 20, "ignore_eos": True}
    assert sent.items() <= job["request"].items()
    assert job["request"]["stop"] == job["request"]["stop_token_ids"] == []


def test_what_the_gateway_refuses_leaves_the_tie_unknown(gateway: str) -> None:
    assert found(gateway, TIE, [1], [2], model="none") == (
        "differs from token 1 on: log-probabilities unknown: model: no live worker serves 'none'; known: "
        "scripted"
    )
