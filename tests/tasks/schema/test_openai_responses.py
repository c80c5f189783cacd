"""Records as OpenAI's bodies, beyond what lines of a batch have (tests/cli/run/test_result_lines.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.schema.openai_responses import answer, answer_of_several, completion_logprobs

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


def record(text: str, prompt_tokens: int = 5, cached: int = 3, **request: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 2,
        "total_tokens": prompt_tokens + 2,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    result = {"text": text, "finish_reason": "stop", "usage": usage, "logprobs": None}
    return {
        "id": "job_1f",
        "model": "m",
        "created_at": 12.5,
        "request": {"prompt": "x", **request},
        "result": result,
    }


def test_calls_of_tools_are_taken_out_of_the_text() -> None:
    body = answer(record(f"Let me see.\n{CALL}\n{CALL}", tools=TOOLS))
    function = {"name": "f", "arguments": '{"x": 1}'}
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Let me see.",
                "refusal": None,
                "tool_calls": [
                    {"id": "call_1f_0", "type": "function", "function": function},
                    {"id": "call_1f_1", "type": "function", "function": function},
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ]
    assert answer(record(CALL, tools=TOOLS))["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("request_fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(request_fields: dict[str, Any]) -> None:
    choice = answer(record(CALL, **request_fields))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": CALL, "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_text_with_tools_and_no_call_stays_as_it_is() -> None:
    choice = answer(record(" No need. \n", tools=TOOLS))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (" No need. \n", "stop")


@pytest.mark.parametrize("raw", [False, True])
def test_token_ids_are_in_the_choice_of_who_asked(raw: bool) -> None:
    asked = record("x", raw=raw)
    plain = answer(asked)["choices"][0]
    asked["result"]["token_ids"] = [7, 8]
    assert answer(asked)["choices"][0] == {**plain, "token_ids": [7, 8]}
    assert "token_ids" not in plain


def test_several_answers_count_each_prompt_once() -> None:
    records = [record("a", 5, 1), record("b", 5, 5), record("c", 7, 2), record("d", 7, 7)]
    body = answer_of_several(records, 2)
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (3, "d"),
    ]
    assert body["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 8,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_offsets_go_on_where_the_last_tokens_ended() -> None:
    tokens = [
        {"token": "\ufffd", "bytes": [0xF0, 0x9F], "logprob": -1.0, "top": []},
        {"token": "\ufffd", "bytes": [0x8C, 0xB1], "logprob": -1.0, "top": []},
        {"token": "ab", "logprob": -1.0, "top": []},
    ]
    whole = completion_logprobs(tokens)
    assert whole is not None
    assert whole["text_offset"] == [0, 0, 1]
    later = completion_logprobs(tokens[1:], offset=1)
    assert later is not None
    assert later["text_offset"] == [0, 1]
