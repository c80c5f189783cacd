"""What the online endpoints refuse: 400 and the field, through the official client. Nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.api.conftest import BODY_LIMIT
from tests.api.requests.test_bad_input import JSON, error

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI: Any = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.fixture(autouse=True)
def _nothing_is_stored(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.get("/v1/jobs").json()["data"] == []


BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    ({"messages": [*HI, {"role": "user", "content": "x", "tool_calls": []}]}, "messages.1.tool_calls"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2049}, "max_tokens"),
    ({"max_completion_tokens": 2049}, "max_completion_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 9}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"seed": "x"}, "seed"),
    ({"stop": [""]}, "stop.0"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"logit_bias": {"word": 1}}, "logit_bias.word.[key]"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logprobs": 2}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options.include_usage"),
    ({"metadata": {"k": 5}}, "metadata.k"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"functions": [{"name": "x"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"extra_body": {"return_token_ids": True}}, "return_token_ids"),
    ({"extra_body": {"deadline": 5.0}}, "deadline"),
    ({"extra_body": {"decoding": "fast"}}, "decoding"),
    ({"extra_body": {"stream": "yes"}}, "stream"),
]


@pytest.mark.parametrize(("options", "param"), BAD_CHATS, ids=lambda value: json.dumps(value)[:60])
def test_bad_chat(client: OpenAI, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "scripted", "messages": HI, **options})
    assert (refused.value.code, refused.value.param) == ("invalid_value", param)
    assert refused.value.type == "invalid_request_error"
    assert str(param) in refused.value.message


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": [[1, 2], [3]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt.1"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": ["a"] * 128 + [""]}, "prompt"),  # counted before any is read
        ({"prompt": ["a", "b"], "temperature": -1}, "temperature"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "max_tokens": 2049}, "max_tokens"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_bad_completion(client: OpenAI, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": "scripted", **options})
    assert (refused.value.code, refused.value.param) == ("invalid_value", param)


def test_a_field_that_nobody_knows(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="scripted", messages=HI, extra_body={"temprature": 1})
    assert (refused.value.code, refused.value.param) == ("unknown_field", "temprature")


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_nobody_serves(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError, match="known: scripted") as refused:
        client.chat.completions.create(model="gpt-9", messages=HI, stream=stream)
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_are_no_request(http: httpx.Client, path: str) -> None:
    for text, code in (
        ("", "malformed_json"),
        ("{", "malformed_json"),
        ('{"prompt": "\\ud800"}', "malformed_json"),
        ('{"prompt": ' + "[" * 2000, "malformed_json"),
        ("[]", "invalid_value"),
        ("null", "invalid_value"),
        (b'{"prompt": "\xff"}', "invalid_utf8"),
    ):
        assert error(http.post(path, content=text, headers=JSON), 400)["code"] == code
    assert error(http.post(path, content="{}", headers=JSON), 400)["code"] == "invalid_value"
    form = {"Content-Type": "text/plain"}
    assert error(http.post(path, content="{}", headers=form), 415)["code"] == "unsupported_media_type"
    large = {"prompt": "x" * BODY_LIMIT}
    assert error(http.post(path, json=large), 413)["code"] == "body_too_large"
    assert error(http.get(path), 405)["code"] == "method_not_allowed"


def test_numbers_that_are_none(http: httpx.Client) -> None:
    for number in ("NaN", "1e999", "-Infinity"):
        text = f'{{"prompt": "a", "temperature": {number}}}'
        assert error(http.post(COMPLETIONS, content=text, headers=JSON), 400)["param"] == "temperature"


def test_a_stream_is_refused_as_any_other(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="scripted", prompt="x", max_tokens=0, stream=True)
    assert refused.value.param == "max_tokens"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/chat", "/v1/jobs/job_none/events", "/v1/models/x/y"])
def test_unknown_paths_have_openais_shape(client: OpenAI, path: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.get(path.removeprefix("/v1"), cast_to=object)
    assert refused.value.code in ("not_found", "job_not_found", "model_not_found")
    assert refused.value.type == "invalid_request_error"
