"""OpenAI's bodies read as their clients send them, and each thing that we do not do named by its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.schema.job_request import JobRequest, job_problems
from tasks.schema.openai_requests import CHAT, COMPLETIONS, JOBS, as_written, body_fields, job_fields

HI = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "object", "default": None}, "strict": True},
}
OTHER_TOOL = {"type": "function", "function": {"name": "get_time"}}
NAME = {"name": "get_weather"}
GUIDED: dict[str, Any] = {"name": "guided", "schema": {"type": "object"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"X"}'}}


def fields(body: dict[str, Any], endpoint: str = CHAT) -> dict[str, Any]:
    """The job fields of a body that is fine."""
    found, problems = body_fields(endpoint, body)
    assert [*problems, *job_problems(found)] == []
    return found


def chat(**body: Any) -> dict[str, Any]:
    """What a chat's body adds to its messages."""
    found = fields({"messages": [HI], **body})
    assert found.pop("messages") == [HI]
    return found


def wrong(body: dict[str, Any], endpoint: str = CHAT) -> list[str]:
    """What is wrong with a body, its own schema included, by the names of its fields."""
    before = json.dumps(body)
    found, problems = body_fields(endpoint, body)
    assert json.dumps(body) == before, "the caller's body stays as it is"
    schema = [
        (problem.field and as_written(problem.field, body), problem.message)
        for problem in job_problems(found)
    ]
    return [f"{field}: {message}" for field, message in [*((p.field, p.message) for p in problems), *schema]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "m", "temperature": 1, "top_p": 0.5}, {"model": "m", "temperature": 1, "top_p": 0.5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False}, {}),
        ({"logprobs": None, "top_logprobs": None, "n": None, "stop": None, "seed": None}, {}),
        ({"n": 1, "stream": False, "modalities": ["text"], "return_token_ids": False}, {}),
        ({"stop": "end"}, {"stop": "end"}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -1}, {"seed": 2**63 - 1}),
        ({"logit_bias": {"11": -100, "12": 2.5}}, {"logit_bias": {"11": -100, "12": 2.5}}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2, "frequency_penalty": 2}),
        ({"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        ({"response_format": SCHEMA}, {"response_format": SCHEMA}),
        ({"tools": [WEATHER], "tool_choice": "auto"}, {"tools": [WEATHER], "tool_choice": "auto"}),
        *(
            ({"tools": [WEATHER], **choice}, {"tools": [WEATHER], **choice})
            for choice in (
                {"parallel_tool_calls": False},
                {"tool_choice": "required"},
                {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            )
        ),
        (
            {
                "tools": [WEATHER, OTHER_TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": NAME}]},
                },
            },
            {"tools": [WEATHER], "tool_choice": "required"},
        ),
        *(
            (guided, {"response_format": {"type": "json_schema", "json_schema": GUIDED}})
            for guided in (
                {"guided_json": GUIDED["schema"]},
                {"guided_json": '{"type": "object"}'},
                {"structured_outputs": {"json": GUIDED["schema"]}},
            )
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ({"user": "u", "store": True, "service_tier": "auto", "stream_options": None}, {}),
        ({"safety_identifier": "u", "prompt_cache_key": "k", "reasoning_effort": "low"}, {}),
        ({"metadata": {"k": "v"}}, {"metadata": {"k": "v"}}),
        ({"top_k": 4, "min_p": 0.1, "decoding": "normal"}, {"top_k": 4, "min_p": 0.1, "decoding": "normal"}),
    ],
)
def test_options_of_a_chat(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**body) == expected


def test_messages_of_every_role() -> None:
    given = [
        {"role": "developer", "content": "be brief", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "assistant", "content": None, "refusal": "no", "audio": None, "function_call": None},
        {"role": "user", "content": ""},
    ]
    assert fields({"messages": given})["messages"] == [
        {"role": "system", "content": "be brief", "name": "boss"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": ""},
    ]


def test_a_completion_is_raw_text() -> None:
    body = {"prompt": "once", "logprobs": 2, "echo": False, "best_of": 1, "suffix": None, "user": "u"}
    assert fields(body, COMPLETIONS) == {"prompt": "once", "logprobs": 2, "raw": True}
    assert fields({"prompt": ["once"]}, COMPLETIONS) == {"prompt": "once", "raw": True}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"guided_json": "no schema"}, "guided_json: must be a JSON schema"),
        ({"guided_json": {}, "response_format": SCHEMA}, "guided_json: give this or response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs: only json, a schema, is supported"),
        ({"guided_regex": "a"}, "guided_regex: there is no such field"),
        ({"n": 2}, "n: only 1 answer a line is possible: send a line for each"),
        ({"n": True}, "n: only 1 answer a line is possible: send a line for each"),
        ({"return_token_ids": True}, "return_token_ids: only jobs return them"),
        ({"stream": True}, "stream: nothing can be streamed from a batch"),
        ({"audio": {"voice": "x"}}, "audio: sound cannot be answered"),
        ({"modalities": ["text", "audio"]}, "modalities: only text can be answered"),
        ({"functions": [{}]}, "functions: is obsolete: use tools"),
        ({"function_call": "auto"}, "function_call: is obsolete: use tool_choice"),
        ({"web_search_options": {}}, "web_search_options: the web cannot be searched"),
        ({"moderation": {"model": "m"}}, "moderation: is not supported"),
        ({"logprobs": 3}, "logprobs: must be true or false; top_logprobs is the number"),
        ({"top_logprobs": 3}, "top_logprobs: needs logprobs to be true"),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs: input should be less than or equal to 20",
        ),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs: input should be a valid integer"),
        (
            {"max_completion_tokens": 0},
            "max_completion_tokens: input should be greater than or equal to 1",
        ),
        ({"max_tokens": 0}, "max_tokens: input should be greater than or equal to 1"),
        ({"seed": -(2**63) - 1}, "seed: input should be greater than or equal to 0"),
        ({"seed": 1.5}, "seed: input should be a valid integer"),
        ({"tools": [WEATHER], "tool_choice": "any"}, 'tool_choice: must be "auto", "none", "required" or'),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, 'tool_choice: must be "auto", "none"'),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice: names none of the tools",
        ),
        ({"tool_choice": "required"}, "tool_choice: needs tools"),
        ({"tools": [WEATHER], "parallel_tool_calls": "no"}, "parallel_tool_calls: input should be"),
        ({"tools": [{"type": "custom"}]}, "tools.0.type: input should be 'function'"),
        ({"tools": []}, "tools: list should have at least 1 item after validation, not 0"),
        ({"response_format": {"type": "xml"}}, "response_format.type: input should be"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema: goes with the type json_schema, and with no other",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema: field required",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name: string should match pattern",
        ),
        ({"temprature": 1}, "temprature: there is no such field"),
        ({"metadata": {"k": 5}}, "metadata.k: input should be a valid string"),
    ],
)
def test_what_a_chat_cannot_have(body: dict[str, Any], expected: str) -> None:
    first, *_ = wrong({"messages": [HI], **body})
    assert first.startswith(expected)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "robot", "content": "x"}, "messages.0.role: input should be 'system', 'user', "),
        ({"role": "user"}, "messages.0.content: missing"),
        ({"role": "user", "content": 5}, "messages.0.content: input should be a valid string"),
        ({"role": "tool", "content": "x"}, "messages.0.tool_call_id: a message of role tool has one"),
        (
            {"role": "user", "content": "x", "tool_call_id": "c"},
            "messages.0.tool_call_id: a message of role tool has one",
        ),
        (
            {"role": "user", "content": "x", "tool_calls": [CALL]},
            "messages.0.tool_calls: only an assistant's message has them",
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]},
            "messages.0.tool_calls.0.type: input should be 'function'",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages.0.content.0: must be a part of text, not image_url",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 5}]},
            "messages.0.content.1: must be a part of text",
        ),
        ({"role": "user", "content": ["a"]}, "messages.0.content.0: must be a part of text"),
        (
            {"role": "assistant", "content": "x", "audio": {"id": "a"}},
            "messages.0.audio: only text is supported",
        ),
        (
            {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": ""}},
            "messages.0.function_call: is obsolete: use tool_calls",
        ),
        ({"role": "user", "content": "x", "nmae": "y"}, "messages.0.nmae: there is no such field"),
        ("hello", "messages.0: input should be an object"),
    ],
)
def test_what_a_message_cannot_be(message: Any, expected: str) -> None:
    found = wrong({"messages": [message]})
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": [1, 2]}, "prompt: token ids cannot be read: send text"),
        ({"prompt": [[1, 2]]}, "prompt: token ids cannot be read: send text"),
        ({"prompt": ["a", "b"]}, "prompt: must be one text: send a line for each"),
        ({"prompt": [None]}, "prompt: must be one text: send a line for each"),
        ({"prompt": []}, "prompt: must be one text: send a line for each"),
        ({"prompt": 5}, "prompt: input should be a valid string"),
        ({"prompt": None}, "prompt: missing"),
        ({"messages": [HI]}, "messages: belongs to the other endpoint: send prompt"),
        ({"prompt": "x", "echo": True}, "echo: the prompt cannot be echoed"),
        ({"prompt": "x", "best_of": 3}, "best_of: only 1 is possible"),
        ({"prompt": "x", "suffix": "y"}, "suffix: text cannot be inserted before a suffix"),
        ({"prompt": "x", "logprobs": True}, "logprobs: must be a number here"),
        ({"prompt": "x", "tools": [WEATHER]}, "tools: raw text has no place for tools, a chat template has"),
    ],
)
def test_what_a_completion_cannot_have(body: dict[str, Any], expected: str) -> None:
    assert wrong(body, COMPLETIONS) == [expected]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "messages: missing"),
        ({"messages": None}, "messages: missing"),
        ({"prompt": "x"}, "prompt: belongs to the other endpoint: send messages"),
        ({"prompt": "x", "messages": [HI]}, "prompt: belongs to the other endpoint: send messages"),
    ],
)
def test_a_chat_is_of_messages(body: dict[str, Any], expected: str) -> None:
    assert wrong(body) == [expected]


def test_a_batch_line_names_the_field_within_its_body() -> None:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": [HI], "n": 2, "audio": {}}}
    assert sorted(str(problem) for problem in job_fields(line)[1]) == [
        "body.audio: sound cannot be answered",
        "body.n: only 1 answer a line is possible: send a line for each",
    ]
    assert [problem.field for problem in job_fields({**line, "url": [CHAT]})[1]] == ["url"]


def test_a_batch_line_of_ours_has_job_fields_already() -> None:
    body = {"messages": [{**HI, "name": None}], "top_k": 4, "seed": -1, "model": None}
    line = {"custom_id": "a", "method": "POST", "url": JOBS, "body": body}
    assert job_fields(line) == ({"messages": [HI], "top_k": 4, "seed": -1}, [])
    fields, problems = job_fields({**line, "body": {"prompt": "x", "priority": "bulk", "deadline": 1}})
    assert fields == {"prompt": "x"}
    assert [problem.field for problem in problems] == ["body.deadline", "body.priority"]


def test_a_schema_is_stored_as_it_was_written() -> None:
    """A null inside it has a meaning."""
    job = JobRequest.model_validate_json(json.dumps(fields({"messages": [HI], "response_format": SCHEMA})))
    assert job.sent()["response_format"] == SCHEMA


@pytest.mark.parametrize(
    ("field", "body", "written"),
    [
        ("max_tokens", {"max_tokens": 5}, "max_tokens"),
        ("max_tokens", {"max_completion_tokens": 5}, "max_completion_tokens"),
        ("max_tokens", {"messages": [HI]}, "max_tokens"),
        ("prompt", {"messages": [HI]}, "messages"),
        ("prompt", {"prompt": "x"}, "prompt"),
        ("logprobs", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("response_format", {"messages": [HI]}, "response_format"),
    ],
)
def test_what_the_worker_refuses_has_the_bodys_own_name(
    field: str, body: dict[str, Any], written: str
) -> None:
    assert as_written(field, body) == written
