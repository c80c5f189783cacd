"""Files of batches that were made for other servers, run as they are."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tasks.base.settings import Settings
from tests.api.routes.batches.batch_client import create, end, entries
from tests.support.servers import RedisServer, fast_settings

URL = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, model_aliases={"gpt-3.5-turbo-0125": "", "gpt-4o": "scripted"})


def example(model: str) -> list[dict[str, Any]]:
    """The example of OpenAI's guide, and, with another model, of vLLM's run_batch."""
    texts = ("You are a helpful assistant.", "You are an unhelpful assistant.")
    return [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": URL,
            "body": {
                "model": model,
                "messages": [
                    {"role": "system", "content": text},
                    {"role": "user", "content": "Hello world!"},
                ],
                "max_tokens": 1000,
            },
        }
        for number, text in enumerate(texts, 1)
    ]


@pytest.mark.parametrize("model", ["gpt-3.5-turbo-0125", "gpt-4o"])
def test_lines_may_name_an_alias(client: openai.OpenAI, model: str) -> None:
    done = end(client, create(client, example(model)))
    assert [entry["custom_id"] for entry in entries(client, done.output_file_id)] == [
        "request-1",
        "request-2",
    ]
    assert done.error_file_id is None


def test_a_batch_may_have_another_model_than_its_lines(client: openai.OpenAI) -> None:
    lines = example("meta-llama/Meta-Llama-3-8B-Instruct")
    done = end(client, create(client, lines, extra_body={"model": "scripted"}))
    bodies = [entry["response"]["body"] for entry in entries(client, done.output_file_id)]
    assert [body["model"] for body in bodies] == ["scripted"] * 2


def test_online_requests_may_name_an_alias(client: openai.OpenAI) -> None:
    for model in ("gpt-3.5-turbo-0125", "gpt-4o"):
        messages: Any = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(model=model, messages=messages)
        assert answer.choices[0].message.content == "hello"
        assert client.responses.create(model=model, input="hello").output_text == "hello"
        assert json.loads(client.models.with_raw_response.retrieve(model).text)["id"] == model
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-5", messages=messages)
