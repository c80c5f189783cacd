"""Requests: every check refuses with the field at fault."""

from __future__ import annotations

import pytest

from engine import Request, RequestRefused, SamplingParams
from engine.base.request import MAX_TOP_LOGPROBS, SEED_LIMIT

NAN, INFINITY = float("nan"), float("inf")
USER = ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("temperature", NAN),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", NAN),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", NAN),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10.5),
        ("repetition_penalty", NAN),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("presence_penalty", NAN),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", INFINITY),
        ("logit_bias", {3: 1.0, 4: -100.5}),
        ("logit_bias", {3: 100.5}),
        ("logit_bias", {3: NAN}),
        ("seed", -1),
        ("seed", SEED_LIMIT),
        ("stop", ("a", "")),
        ("logprobs", -1),
        ("logprobs", MAX_TOP_LOGPROBS + 1),
    ],
)
def test_a_sampling_value_out_of_range_names_its_field(field: str, value: object) -> None:
    with pytest.raises(RequestRefused, match=f"^{field} must") as refused:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert (refused.value.param, refused.value.code) == (field, "invalid_request")


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 1, "temperature": 0, "top_p": 1e-9, "top_k": 0, "min_p": 0, "seed": 0, "logprobs": 0},
        {"temperature": 2, "top_p": 1, "min_p": 1, "seed": SEED_LIMIT - 1, "logprobs": MAX_TOP_LOGPROBS},
        {"repetition_penalty": 10, "presence_penalty": -2, "frequency_penalty": 2},
        {"logit_bias": {0: -100, 1: 100}, "stop": ("\n",), "stop_token_ids": (0,)},
    ],
)
def test_values_at_the_bounds_are_taken(values: dict[str, object]) -> None:
    params = SamplingParams(**values)  # type: ignore[arg-type]
    assert {name: getattr(params, name) for name in values} == values


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {}),
        ("prompt", {"prompt": "hi", "messages": USER}),
        ("prompt", {"prompt": ""}),
        ("messages", {"messages": ()}),
        ("raw", {"messages": USER, "raw": True}),
    ],
)
def test_a_request_has_one_prompt_that_is_not_empty(param: str, fields: dict[str, object]) -> None:
    with pytest.raises(RequestRefused) as refused:
        Request(id="r", sampling=SamplingParams(), **fields)  # type: ignore[arg-type]
    assert refused.value.param == param


def test_whole_requests_are_taken() -> None:
    assert Request(id="r", sampling=SamplingParams(), prompt="hi", raw=True).priority == 0
    assert Request(id="r", sampling=SamplingParams(), messages=USER).messages == USER
