"""The published schema of a batch line against the decoder that has the last word."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tasks.batches.line_decoder import LineDecoder
from tasks.records.packed_line import Line
from tasks.schema.batch_line_schema import line_schema
from tasks.schema.openai_requests import CHAT, COMPLETIONS, JOBS, RESPONSES

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = line_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def line(url: str, body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": url, "body": body}


@pytest.mark.parametrize(
    ("url", "body", "good"),
    [
        (CHAT, {"messages": MESSAGES, "max_completion_tokens": 4, "logprobs": True}, True),
        (CHAT, {"messages": []}, False),
        (COMPLETIONS, {"prompt": ["x"], "logprobs": 2}, True),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, False),
        (COMPLETIONS, {"prompt": "x", "temperature": 2}, True),
        (COMPLETIONS, {"prompt": "x", "temperature": 9}, False),
        (RESPONSES, {"input": "x", "max_output_tokens": 4, "temperature": 2}, True),
        (RESPONSES, {"input": [{"role": "user", "content": "x"}], "instructions": "y"}, True),
        (RESPONSES, {"instructions": "y"}, False),
        (RESPONSES, {"input": 5}, False),
        (RESPONSES, {"input": "x", "max_output_tokens": 0}, False),
        (JOBS, {"prompt": "x"}, True),
        (JOBS, {"prompt": "x", "raw": True, "logprobs": 2, "stop": "end", "decoding": "medusa"}, True),
        (JOBS, {"messages": MESSAGES, "tools": [TOOL], "metadata": {"k": "v"}}, True),
        (JOBS, {}, False),
        (JOBS, {"prompt": "x", "messages": MESSAGES}, False),
        (JOBS, {"messages": MESSAGES, "raw": True}, False),
        (JOBS, {"prompt": "x", "raw": True, "tools": [TOOL]}, False),
        (JOBS, {"prompt": "x", "logprobs": True}, False),
        (JOBS, {"prompt": "x", "return_token_ids": True}, True),
        (JOBS, {"prompt": "x", "return_token_ids": 1}, False),
        (JOBS, {"prompt": ["x"]}, False),
        (JOBS, {"prompt": "x", "max_completion_tokens": 4}, False),
        (JOBS, {"prompt": "x", "priority": "bulk"}, False),
        (JOBS, {"prompt": "x", "deadline": 4e9}, False),
        ("/v1/embeddings", {"prompt": "x"}, False),
    ],
)
def test_the_schema_says_what_the_decoder_says(
    validator: jsonschema.Draft202012Validator, url: str, body: dict[str, Any], good: bool
) -> None:
    value = line(url, body)
    decoded = LineDecoder(url, 4096, 64).decode(1, json.dumps(value).encode())
    assert (validator.is_valid(value), isinstance(decoded, Line)) == (good, good)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ({"prompt": "x"}, True),
        ({"prompt": "x", "custom_id": "a", "max_tokens": 4}, True),
        ({"messages": MESSAGES, "custom_id": None}, True),
        ({"prompt": "x", "custom_id": ""}, False),
        ({"prompt": "x", "messages": MESSAGES}, False),
        ({"prompt": "x", "unknown": 1}, False),
        ({"prompt": "x", "url": JOBS}, False),
        ({"custom_id": "a"}, False),
    ],
)
def test_a_job_as_it_stands(
    validator: jsonschema.Draft202012Validator, value: dict[str, Any], good: bool
) -> None:
    decoded = LineDecoder(CHAT, 4096, 64).decode(1, json.dumps(value).encode())
    assert (validator.is_valid(value), isinstance(decoded, Line)) == (good, good)
