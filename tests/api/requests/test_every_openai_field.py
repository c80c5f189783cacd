"""Each field of OpenAI's requests, as its client knows them, is used, ignored or refused by its name.

A field that a later client has fails the first test, until somebody says what becomes of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params

from api.service.online_request import read, read_response
from tasks.base.errors import InvalidRequest
from tasks.records.endpoints import CHAT, COMPLETIONS, RESPONSES

MOST_BYTES = 10_000
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
FUNCTION: dict[str, Any] = {"name": "f", "parameters": PARAMETERS}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
FORM: dict[str, Any] = {"type": "json_schema", "name": "a", "schema": PARAMETERS}
SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_p": 0.5}
EVERYWHERE: dict[str, Any] = {**SAMPLING, "model": "m", "stream": True}
IGNORED: dict[str, Any] = {
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "flex",
    "user": "u",
}
PENALTIES: dict[str, Any] = {"frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"5": 1}}

# By endpoint: a body to begin with, the fields that are used, those that are ignored, those that are refused.
ENDPOINTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    CHAT: (
        {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "logprobs": True},
        {
            **EVERYWHERE,
            **PENALTIES,
            "logprobs": False,
            "max_completion_tokens": 7,
            "max_tokens": 7,
            "messages": [{"role": "user", "content": "other"}],
            "metadata": {"a": "b"},
            "n": 2,
            "parallel_tool_calls": False,
            "response_format": {"type": "json_object"},
            "seed": 7,
            "stop": "x",
            "stream_options": {"include_usage": True},
            "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "other"}}],
            "top_logprobs": 3,
        },
        {
            **IGNORED,
            "prediction": {"type": "content", "content": "x"},
            "reasoning_effort": "low",
            "store": True,
            "verbosity": "low",
        },
        {
            "audio": {"voice": "ash", "format": "mp3"},
            "function_call": "none",
            "functions": [FUNCTION],
            "modalities": ["text", "audio"],
            "moderation": {"model": "m"},
            "web_search_options": {},
        },
    ),
    COMPLETIONS: (
        {"prompt": "hi"},
        {
            **EVERYWHERE,
            **PENALTIES,
            "logprobs": 3,
            "max_tokens": 7,
            "n": 2,
            "prompt": ["a", "b"],
            "seed": 7,
            "stop": ["x"],
            "stream_options": {"include_usage": True},
        },
        {"user": "u"},
        {"best_of": 2, "echo": True, "suffix": "x"},
    ),
    RESPONSES: (
        {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
        {
            **EVERYWHERE,
            "include": ["message.output_text.logprobs"],
            "input": "other",
            "instructions": "be brief",
            "max_output_tokens": 7,
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "previous_response_id": "resp_1",
            "store": False,
            "text": {"format": FORM},
            "tool_choice": "required",
            "tools": [],
        },
        {
            **IGNORED,
            "max_tool_calls": 1,
            "reasoning": {"effort": "low"},
            "stream_options": {"include_obfuscation": False},
        },
        {
            "access_programs": [{"id": "a"}],
            "background": True,
            "context_management": [{"type": "compaction"}],
            "conversation": "conv_1",
            "image": {"model": "m"},
            "moderation": {"model": "m"},
            "prompt": {"id": "p"},
            "top_logprobs": 3,
            "truncation": "auto",
        },
    ),
}
CLIENTS = {
    CHAT: chat_params.CompletionCreateParamsStreaming,
    COMPLETIONS: completion_params.CompletionCreateParamsStreaming,
    RESPONSES: response_params.ResponseCreateParamsStreaming,
}
CASES = [
    (endpoint, number, field)
    for endpoint, parts in ENDPOINTS.items()
    for number in (1, 2, 3)
    for field in parts[number]
]


def outcome(endpoint: str, body: dict[str, Any]) -> dict[str, Any] | str | None:
    """What the gateway makes of a body, or the field that it refuses."""
    try:
        if endpoint == RESPONSES:
            read_as = asdict(read_response(body, [], MOST_BYTES))
        else:
            read_as = asdict(read(json.dumps(body).encode(), endpoint, MOST_BYTES))
    except InvalidRequest as error:
        return error.param
    del read_as["body"]
    return read_as


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_no_field_of_the_client_is_left_undecided(endpoint: str) -> None:
    _, *decided = ENDPOINTS[endpoint]
    names = [name for part in decided for name in part]
    assert sorted(names) == sorted(CLIENTS[endpoint].__annotations__), "each once"


@pytest.mark.parametrize(("endpoint", "place", "field"), CASES)
def test_it_is_used_ignored_or_refused(endpoint: str, place: int, field: str) -> None:
    parts = ENDPOINTS[endpoint]
    body = parts[0]
    without = outcome(endpoint, body)
    assert isinstance(without, dict)
    given = outcome(endpoint, {**body, field: parts[place][field]})
    if place == 1:
        assert isinstance(given, dict), given
        assert given != without
    elif place == 2:
        assert given == without
    else:
        assert given == field
