"""Streams through the official client: whole, in order, in OpenAI's chunks."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion

from tests.api.conftest import GatewayProcess
from tests.api.routes.openai.test_whole import CALL, MODEL, TOOLS, record

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]


def chat(client: OpenAI, text: str, **options: Any) -> list[ChatCompletionChunk]:
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], stream=True, **options
    )
    return list(stream)


def completion(client: OpenAI, prompt: str | list[str], **options: Any) -> list[Completion]:
    return list(client.completions.create(model=MODEL, prompt=prompt, stream=True, **options))


def content(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """The text of one choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_chat_comes_in_chunks(client: OpenAI, http: httpx.Client) -> None:
    chunks = chat(client, "Héllo there 🌱 stream=4 delay=4")
    job = record(http, chunks[0].id)
    assert {(c.id, c.object, c.created, c.model) for c in chunks} == {
        ("chatcmpl-" + job["id"][4:], "chat.completion.chunk", int(job["created_at"]), MODEL)
    }
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    first, *rest, last = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
    assert [(c.delta.role, c.finish_reason, c.index) for c in rest] == [(None, None, 0)] * len(rest)
    assert (last.delta.content, last.finish_reason) == (None, "stop")
    assert len(rest) > 5
    assert content(chunks) == job["result"]["text"] == "Héllo there 🌱 " * 4


def test_text_comes_while_it_is_made(client: OpenAI) -> None:
    began = time.monotonic()
    stream = client.completions.create(model=MODEL, prompt="word stream=9 delay=20", stream=True)
    assert next(iter(stream)).choices[0].text == "word "
    assert 20 / 9 <= time.monotonic() - began < 12
    stream.close()


def test_a_completion_comes_in_chunks(client: OpenAI) -> None:
    chunks = completion(client, "a b stream=2 delay=0.2")
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a b a b "
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_an_answer_at_once_is_a_stream_too(client: OpenAI) -> None:
    assert content(chat(client, "just this")) == "just this"
    assert content(chat(client, "tokens=1")) == ""


def test_usage_comes_in_a_last_chunk_if_asked_for(client: OpenAI) -> None:
    chunks = chat(client, "a b stream=2", stream_options={"include_usage": True})
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].choices, chunks[-1].usage and chunks[-1].usage.model_dump(exclude_none=True)) == (
        [],
        {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    )
    [last] = [c for c in completion(client, "a", stream_options={"include_usage": True}) if not c.choices]
    assert last.usage is not None
    assert last.usage.total_tokens == 2
    assert all(chunk.usage is None for chunk in chat(client, "a", stream_options={"include_usage": False}))


def test_several_answers_at_once(client: OpenAI) -> None:
    chunks = chat(client, "x y stream=3 delay=3", n=3, stream_options={"include_usage": True})
    assert [content(chunks, index) for index in range(3)] == ["x y x y x y "] * 3
    order = [chunk.choices[0].index for chunk in chunks if chunk.choices]
    assert order.index(1) < len(order) - 1 - order[::-1].index(0), "side by side"
    assert len({chunk.id for chunk in chunks}) == 1
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == ["stop"] * 3
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 18)


def test_several_prompts_at_once(client: OpenAI) -> None:
    chunks = completion(client, ["a stream=3 delay=0.2", "b stream=3 delay=0.2"])
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["a a a ", "b b b "]


def test_tool_calls_come_as_calls(client: OpenAI) -> None:
    chunks = chat(client, f"Well. {CALL} stream=2 delay=0.3", tools=TOOLS)
    assert content(chunks) == "Well.Well."
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.type) for call in calls] == [(0, "function"), (1, "function")]
    assert len({call.id for call in calls}) == 2
    for call in calls:
        assert call.function is not None
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments or "") == {"city": "Paris"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_accumulator_agrees(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": f"Well. {CALL} stream=1"}], tools=TOOLS
    ) as stream:
        final = stream.get_final_completion()
    [choice] = final.choices
    assert choice.message.content == "Well."
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "get_weather"


def test_logprobs_come_with_their_text(client: OpenAI) -> None:
    chunks = chat(client, "é b stream=2 delay=0.2", logprobs=True, top_logprobs=1)
    tokens = [t for c in chunks if (found := c.choices[0].logprobs) for t in found.content or ()]
    assert [token.token for token in tokens] == ["x", "x1", "x2", "x3"]
    assert all(len(token.top_logprobs) == 1 for token in tokens)
    offsets, names = [], []
    for part in completion(client, "é b stream=2 delay=0.2", logprobs=1):
        if logprobs := part.choices[0].logprobs:
            offsets += logprobs.text_offset or []
            names += logprobs.tokens or []
    assert (offsets, names) == ([0, 1, 3, 5], ["x", "x1", "x2", "x3"])


def test_a_failure_after_the_first_token_is_an_event(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="a stream=4 delay=4 fail=decode_failed", stream=True
    )
    seen = []
    with pytest.raises(openai.APIError, match="as the script says") as failed:
        seen += [chunk.choices[0].text for chunk in stream]
    assert failed.value.code == "decode_failed"
    assert failed.value.type == "server_error"


def test_the_bytes_on_the_wire(http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "a", "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"].startswith("job_")
        events = response.read().decode().removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    assert [json.loads(event[6:])["choices"][0]["text"] for event in events[:-1]] == ["a", ""]


def test_many_asynchronous_streams(gateway: GatewayProcess) -> None:
    """Whole, and with the drafts of their last words, which come when the job ends."""

    async def one(client: AsyncOpenAI, number: int) -> tuple[str, list[str]]:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"n{number} 🌱 stream=20 delay=0.3 spans=118:119:lookup"}],
            stream=True,
            extra_body={"stream_options": {"include_drafts": True}},
        )
        choices = [chunk.model_dump()["choices"][0] async for chunk in stream]
        texts = [choice["delta"]["content"] or "" for choice in choices]
        return "".join(texts), [
            text[span["start"] : span["end"]]
            for text, choice in zip(texts, choices, strict=True)
            for span in choice.get("drafts", ())
        ]

    async def many() -> list[tuple[str, list[str]]]:
        async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(10, 40)))

    assert asyncio.run(many()) == [(f"n{number} 🌱 " * 20, ["🌱"]) for number in range(10, 40)]


def test_drafted_parts_are_marked_if_asked_for(client: OpenAI) -> None:
    prompt = "🌱 one two three stream=2 delay=1 spans=2:5:lookup,6:9:medusa,14:18:grammar"
    for chunks in (
        chat(client, prompt, stream_options={"include_drafts": True}),
        completion(client, prompt, stream_options={"include_drafts": True}),
    ):
        marked = {"lookup": "", "medusa": "", "grammar": ""}
        for chunk in chunks:
            [choice] = chunk.model_dump()["choices"]
            text = choice["delta"]["content"] if "delta" in choice else choice["text"]
            for span in choice.get("drafts", ()):
                marked[span["source"]] += text[span["start"] : span["end"]]
        assert marked == {"lookup": "one", "medusa": "two", "grammar": "e 🌱 "}
    assert all("drafts" not in chunk.model_dump()["choices"][0] for chunk in chat(client, prompt))
