"""What a job's fields become for the engine, and the engine's result in the record."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from engine import (
    Acceptance,
    Completion,
    Decoding,
    FinishReason,
    Request,
    RequestRefused,
    SamplingParams,
    TokenLogprob,
    answer_grammar,
    response_grammar,
)
from engine.base.request import Drafted, Timing
from tasks.base.settings import Settings
from tasks.records.claim import Claim
from tasks.schema.job_request import JobRequest
from tasks.worker.conversions import incomplete, to_request, to_result

NOW = time.time()  # of the import, which may lie minutes before a test
FIELDS: dict[str, Any] = {  # of a job, none at its default
    "prompt": "Once",
    "raw": True,
    "model": "some-model",
    "max_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 3,
    "min_p": 0.125,
    "seed": 2**60,
    "stop": ["\n\n", "END"],
    "stop_token_ids": [5, 6],
    "repetition_penalty": 1.5,
    "presence_penalty": 0.75,
    "frequency_penalty": -0.5,
    "logit_bias": {"11": -100.0, "12": 2.5},
    "logprobs": 4,
    "return_token_ids": True,
    "ignore_eos": True,
    "decoding": "medusa",
    "acceptance": "typical",
    "priority": "bulk",
    "deadline": NOW + 86_400,
    "metadata": {"team": "x"},
}


def claim(body: dict[str, Any]) -> Claim:
    """As the gateway stores a body and a worker claims it."""
    job = JobRequest.model_validate_json(json.dumps(body))
    return Claim(
        job_id="job_1",
        fencing_token=1,
        attempts=1,
        request=job.sent(),
        model=job.model,
        priority=job.priority,
        deadline=job.deadline,
        created_at=NOW - 3,
        claimed_at=NOW - 1,
    )


def test_every_field_of_a_job_reaches_the_engine() -> None:
    elsewhere = {"messages", "tools", "tool_choice", "parallel_tool_calls", "response_format"}
    elsewhere |= {"webhook", "response", "chat_template_kwargs"}
    assert {*FIELDS, *elsewhere} == set(JobRequest.model_fields), "a new field belongs in here"
    assert to_request(claim(FIELDS), "r", Settings()) == Request(
        id="r",
        prompt="Once",
        raw=True,
        priority=1,
        deadline=NOW + 86_400,
        decoding=Decoding.MEDUSA,
        sampling=SamplingParams(
            max_tokens=7,
            temperature=0.5,
            top_p=0.25,
            top_k=3,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.75,
            frequency_penalty=-0.5,
            logit_bias={11: -100.0, 12: 2.5},
            seed=2**60,
            stop=("\n\n", "END"),
            stop_token_ids=(5, 6),
            ignore_eos=True,
            logprobs=4,
            acceptance=Acceptance.TYPICAL,
        ),
    )


def test_messages_reach_it_whole_and_what_is_not_said_has_its_default() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Why?"},
    ]
    request = to_request(claim({"messages": messages}), "r", Settings(default_max_tokens=99))
    sampling = SamplingParams(max_tokens=99)
    assert request == Request(id="r", messages=tuple(messages), sampling=sampling, priority=0)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def test_tools_and_their_calls_reach_it() -> None:
    messages = [
        {"role": "user", "content": "Rain?", "name": "ann"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "no"},
    ]
    body = {"messages": messages, "tools": [WEATHER], "max_tokens": 5}
    request = to_request(claim(body), "r", Settings())
    assert request.tools == (WEATHER,)
    assert request.messages == (messages[0], {**messages[1], "content": ""}, messages[2]), "templates join it"
    assert to_request(claim({**body, "tool_choice": "auto"}), "r", Settings()) == request
    assert to_request(claim({**body, "tool_choice": "none"}), "r", Settings()).tools == ()


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": None}, "strict": True}},
    ],
)
def test_the_form_of_the_answer_becomes_a_grammar(form: dict[str, Any]) -> None:
    request = to_request(claim({"prompt": "x", "response_format": form}), "r", Settings())
    assert request.sampling.grammar == response_grammar(form)
    assert (request.sampling.grammar is None) == (form["type"] == "text")


def test_a_schema_without_a_grammar_is_refused() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "a" * 10**6}}}
    with pytest.raises(RequestRefused) as refused:
        to_request(claim({"prompt": "x", "response_format": form}), "r", Settings())
    assert (refused.value.code, refused.value.param) == ("invalid_schema", "response_format")


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b"a", {"token": "a"}),
        ("é".encode(), {"token": "é"}),
        (b"\xf0\x9f", {"token": "�", "bytes": [0xF0, 0x9F]}),
    ],
)
def test_a_result_says_what_the_engine_said(piece: bytes, shown: dict[str, Any]) -> None:
    completion = Completion(
        request_id="r",
        text="a",
        tokens=(1, 2),
        finish_reason=FinishReason.LENGTH,
        prompt_tokens=10,
        cached_tokens=8,
        completion_tokens=3,
        timing=Timing(queue_s=0.5, first_token_s=1.0, total_s=2.0),
        logprobs=(TokenLogprob(1, piece, -0.5, ((2, piece, -1.5),)),),
        steps=2,
        drafted={"lookup": Drafted(verified=4, accepted=1)},
    )
    result = to_result(claim(FIELDS), completion)
    assert result["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert result["timing"] == pytest.approx(
        {"queue_s": 2.5, "first_token_s": 3.0, "total_s": 4.0, "tokens_per_s": 2.0}
    )
    assert result["speculation"] == {
        "steps": 2,
        "tokens_per_step": 1.5,
        "sources": {"lookup": {"verified": 4, "accepted": 1, "acceptance": 0.25}},
    }
    best = {"token_id": 2, "logprob": -1.5, **shown}
    assert result["logprobs"] == [{"token_id": 1, "logprob": -0.5, **shown, "top": [best]}]
    assert result["token_ids"] == [1, 2]


def test_a_result_has_token_ids_if_asked_for_and_the_one_that_ended_it() -> None:
    ended = replace(cut("a", FinishReason.STOP), end_token=9)
    without = to_result(claim({"prompt": "x"}), ended)
    assert to_result(claim({"prompt": "x", "return_token_ids": False}), ended) == without
    asked = to_result(claim({"prompt": "x", "return_token_ids": True}), ended)
    assert asked.pop("token_ids") == [1, 2, 3, 9]
    assert asked == without


def cut(text: str, reason: FinishReason = FinishReason.LENGTH) -> Completion:
    return Completion(
        request_id="r",
        text=text,
        tokens=(1, 2, 3),
        finish_reason=reason,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=3,
        timing=Timing(queue_s=0.0, first_token_s=0.1, total_s=0.2),
        logprobs=None,
    )


JSON_OBJECT: dict[str, Any] = {"type": "json_object"}
NUMBER: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("form", "text", "reason", "expected"),
    [
        (JSON_OBJECT, '{"a": 1', FinishReason.LENGTH, True),
        (JSON_OBJECT, "", FinishReason.LENGTH, True),
        (JSON_OBJECT, "[" * 100_000, FinishReason.LENGTH, True),
        (NUMBER, "12", FinishReason.LENGTH, True),  # perhaps of 123
        (JSON_OBJECT, '{"a": 1}', FinishReason.LENGTH, False),  # it ended with the last token
        (JSON_OBJECT, '{"a": 1', FinishReason.CANCELLED, False),
        ({"type": "text"}, '{"a": 1', FinishReason.LENGTH, False),
        (None, '{"a": 1', FinishReason.LENGTH, False),
    ],
)
def test_json_that_was_cut_off_is_incomplete(
    form: dict[str, Any] | None, text: str, reason: FinishReason, expected: bool
) -> None:
    body = {"prompt": "hi"} | ({} if form is None else {"response_format": form})
    found = incomplete(claim(body), cut(text, reason))
    assert (found is not None) is expected
    if found is not None:
        assert (found["code"], found["param"]) == ("incomplete", None)
        assert "after 3 tokens (max_tokens)" in found["message"]


WRITTEN_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
F_TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "text", "expected"),
    [
        ({"tool_choice": "required"}, WRITTEN_CALL[:-1], True),
        ({"tool_choice": NAMED}, WRITTEN_CALL[:20], True),
        ({"tool_choice": "required"}, f"{WRITTEN_CALL}\n{WRITTEN_CALL[:20]}", False),
        ({"tool_choice": "auto"}, WRITTEN_CALL[:-1], False),  # text
        ({"response_format": JSON_OBJECT}, WRITTEN_CALL, False),
        ({"response_format": JSON_OBJECT}, WRITTEN_CALL[:-1], True),
    ],
)
def test_a_call_that_was_cut_off_is_incomplete_where_there_had_to_be_one(
    fields: dict[str, Any], text: str, expected: bool
) -> None:
    found = incomplete(claim({"prompt": "hi", "tools": F_TOOLS, **fields}), cut(text))
    assert (found is not None) is expected


def test_the_grammar_of_tools_is_that_of_their_choice() -> None:
    for fields in ({}, {"tool_choice": "required"}, {"tool_choice": NAMED}, {"parallel_tool_calls": False}):
        body = {"prompt": "hi", "tools": F_TOOLS, **fields}
        sampling = to_request(claim(body), "r", Settings()).sampling
        choice, parallel = fields.get("tool_choice", "auto"), fields.get("parallel_tool_calls", True)
        assert sampling.grammar == answer_grammar(None, F_TOOLS, choice, bool(parallel))  # type: ignore[arg-type]
        assert sampling.grammar_field == "tools"
    variables = {"prompt": "hi", "chat_template_kwargs": {"enable_thinking": False}}
    assert to_request(claim(variables), "r", Settings()).template_variables == {"enable_thinking": False}
    none = to_request(claim({"prompt": "hi", "tools": F_TOOLS, "tool_choice": "none"}), "r", Settings())
    assert (none.sampling.grammar, none.tools) == (None, ())
