"""The official client against the default model: a stream is the answer, in the form that was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.api.conftest import GatewayProcess
from tests.integration.default_model import serving
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
HAIKU: Any = [{"role": "user", "content": "Write a haiku about rain, and sign it with an emoji."}]
PERSON: Any = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def gateway(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """With a worker of the real engine; bit-identical, so that an answer can be asked for twice."""
    settings = fast_settings(redis_server, batch_invariant=True, lease_ms=10_000)
    with serving(settings, tmp_path_factory.mktemp("online")) as process:
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def model(gateway: GatewayProcess) -> str:
    """As clients find it."""
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="x") as client:
        [served] = client.models.list()
    return served.id


def both(client: OpenAI, **asked: Any) -> tuple[str, str]:
    """The text of a chat, whole and streamed."""
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked, stream=True))
    return whole, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": ["\n", "rain"]},
        {"stop": "a soft", "temperature": 0.8, "seed": 1},
        {"response_format": {"type": "json_object"}, "temperature": 1.2, "seed": 5},
        {"logit_bias": {"28": -100}, "presence_penalty": 1, "frequency_penalty": 1},
        {"extra_body": {"decoding": "normal", "top_k": 20}, "temperature": 1.0, "seed": 9},
    ],
    ids=json.dumps,
)
def test_a_stream_is_the_answer(client: OpenAI, model: str, options: dict[str, Any]) -> None:
    whole, streamed = both(client, model=model, messages=HAIKU, max_tokens=24, **options)
    assert whole == streamed
    stops = options.get("stop", [])
    assert not any(stop in whole for stop in ([stops] if isinstance(stops, str) else stops))


def test_text_of_many_bytes_a_character(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "prompt": "日本語 🌱 ünïcödé 日本語 🌱 ünïcödé 日本語", "max_tokens": 40}
    whole = client.completions.create(**asked).choices[0].text
    streamed = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert whole == "".join(streamed)
    assert not whole.isascii()


def test_logprobs_are_those_of_the_text(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": HAIKU, "max_tokens": 30, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == choice.message.content
    assert all(token.top_logprobs[0].logprob == token.logprob for token in tokens), "greedy"
    streamed = [
        token
        for chunk in client.chat.completions.create(**asked, stream=True)
        if (logprobs := chunk.choices[0].logprobs)
        for token in logprobs.content or ()
    ]
    assert [t.model_dump() for t in streamed] == [t.model_dump() for t in tokens]


def test_several_answers_are_those_of_their_seeds(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": HAIKU, "max_tokens": 12, "temperature": 1.5}
    together = client.chat.completions.create(**asked, n=3, seed=10)
    texts = [choice.message.content for choice in together.choices]
    alone = [client.chat.completions.create(**asked, seed=seed) for seed in (10, 11, 12)]
    assert texts == [answer.choices[0].message.content for answer in alone]
    assert len(set(texts)) == 3
    assert together.usage is not None
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens  # type: ignore[union-attr]


def test_a_prompt_seen_before_is_cached(client: OpenAI, model: str) -> None:
    messages: Any = [{"role": "user", "content": "A long question about the sea. " * 20}]
    for _ in range(2):
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    assert answer.usage.prompt_tokens * 0.8 < cached < answer.usage.prompt_tokens


@pytest.mark.parametrize("decoding", ["auto", "normal"])
def test_json_of_a_schema(client: OpenAI, model: str, decoding: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    asked: Any = {
        "model": model,
        "messages": [{"role": "user", "content": "Who wrote Hamlet, and how old was he?"}],
        "response_format": form,
        "max_tokens": 100,
        "extra_body": {"decoding": decoding},
    }
    whole, streamed = both(client, **asked)
    assert whole == streamed
    jsonschema.validate(json.loads(whole), PERSON)


def test_json_that_does_not_fit_is_a_failure_of_its_job_alone(
    client: OpenAI, gateway: GatewayProcess, model: str
) -> None:
    """It is complete with the token that ends it, though max_tokens is reached by that."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    prompt = "Who wrote Hamlet, and how old was he?"

    def job(max_tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt, "response_format": form, "max_tokens": max_tokens, "seed": 1}
        found: dict[str, Any] = gateway.http.post("/v1/jobs", json=body, headers={"Prefer": "wait=60"}).json()
        return found

    whole = job(100)
    assert whole["status"] == "succeeded"
    tokens = whole["result"]["usage"]["completion_tokens"]
    cut = job(5)
    assert (cut["status"], cut["error"]["code"]) == ("failed", "incomplete")
    assert cut["result"]["finish_reason"] == "length"
    assert cut["result"]["text"] == whole["result"]["text"][: len(cut["result"]["text"])] != ""
    exact = [job(limit) for limit in (tokens, tokens - 1)]
    assert exact[0]["status"] == "succeeded"
    for one in exact:
        complete = one["result"]["text"] == whole["result"]["text"]
        assert (one["status"] == "succeeded") is complete
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        response_format=form,
        max_tokens=5,
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == cut["result"]["text"]


def test_the_clients_own_models(client: OpenAI, model: str) -> None:
    class Colour(BaseModel):
        name: str
        warm: bool

    parsed = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Name a colour."}],
        response_format=Colour,
        max_tokens=100,
    )
    assert isinstance(parsed.choices[0].message.parsed, Colour)


def test_tools_are_called_as_their_choice_says(client: OpenAI, model: str) -> None:
    """By a model whose chat template knows no tools, whole and streamed."""
    weather: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
                "required": ["city", "days"],
            },
        },
    }
    clock: Any = {"type": "function", "function": {"name": "get_time"}}
    asked: Any = {"model": model, "tools": [weather, clock], "max_tokens": 300}
    asked["messages"] = [{"role": "user", "content": "What is the weather in Paris, and what time is it?"}]
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    for choice, parallel in ((named, True), ("required", False), ("required", True), ("auto", True)):
        options: Any = {**asked, "tool_choice": choice, "parallel_tool_calls": parallel}
        [whole] = client.chat.completions.create(**options).choices
        with client.chat.completions.stream(**options) as stream:
            [streamed] = stream.get_final_completion().choices
        assert (streamed.message.content or "") == (whole.message.content or "")
        calls = whole.message.tool_calls or []
        made = [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]
        again = streamed.message.tool_calls or []
        assert made == [(call.function.name, call.function.arguments) for call in again]
        for name, arguments in made:
            schema = weather["function"]["parameters"] if name == "get_weather" else {"maxProperties": 0}
            jsonschema.validate(json.loads(arguments), schema)
        if choice != "auto":
            assert whole.finish_reason == streamed.finish_reason == "tool_calls"
            assert not whole.message.content
            assert len(made) >= 1 if parallel and choice == "required" else len(made) == 1
        if choice == named:
            assert made[0][0] == "get_weather"


def test_what_this_model_cannot_do(client: OpenAI, model: str) -> None:
    parameters = {"$ref": "https://else.where/schema.json"}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"$ref": "https://else.where/schema.json"}},
    }
    multiple = {"type": "integer", "multipleOf": 99_999_989}
    costly = {"type": "json_schema", "json_schema": {"name": "n", "schema": multiple}}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"tools": [tool]}, "invalid_schema", "tools"),
        ({"response_format": form}, "invalid_schema", "response_format"),
        ({"response_format": costly}, "schema_too_complex", "response_format"),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, "context_length_exceeded", "messages"),
    ]
    for options, code, param in cases:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(
                    **{"model": model, "messages": HAIKU, "max_tokens": 5, "stream": stream, **options}
                )
            assert (refused.value.code, refused.value.param) == (code, param)


def test_a_closed_stream_frees_its_slot(client: OpenAI, gateway: GatewayProcess, model: str) -> None:
    stream = client.completions.create(
        model=model, prompt="Once", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    [job] = gateway.http.get("/v1/jobs", params={"limit": 1}).json()["data"]
    ended = gateway.http.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=20"}).json()
    assert ended["status"] == "cancelled"
    assert ended["result"]["usage"]["completion_tokens"] < 500

    def idle() -> bool:
        [served] = gateway.http.get("/v1/models").json()["data"]
        return bool(served["workers_detail"][0]["metrics"]["running"] == 0)

    wait_until(idle)


def test_asynchronous_streams_at_once(gateway: GatewayProcess, model: str) -> None:
    async def one(client: AsyncOpenAI, number: int, stream: bool) -> str:
        asked: Any = {
            "model": model,
            "messages": [{"role": "user", "content": f"Count from {number}."}],
            "max_tokens": 20,
        }
        if not stream:
            return (await client.chat.completions.create(**asked)).choices[0].message.content or ""
        chunks = await client.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def main() -> list[list[str]]:
        async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            return [
                await asyncio.gather(*(one(client, number, stream) for number in range(8)))
                for stream in (False, True)
            ]

    whole, streamed = asyncio.run(main())
    assert whole == streamed
