"""The online endpoints through the official client: every option of a whole answer."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from tests.api.conftest import GatewayProcess
from tests.support.workers import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

MODEL = "scripted"
CALL = '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>'
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"const": None}}}},
}


def chat(client: OpenAI, text: str, **options: Any) -> ChatCompletion:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], **options
    )
    assert isinstance(answer, ChatCompletion)
    return answer


def record(http: httpx.Client, answer_id: str) -> dict[str, Any]:
    """Of the job behind an answer."""
    job: dict[str, Any] = http.get(f"/v1/jobs/job_{answer_id.partition('-')[2]}").json()
    return job


def request_of(http: httpx.Client, answer: Any) -> dict[str, Any]:
    """What the job asked for, without what every one has."""
    sent: dict[str, Any] = record(http, answer.id)["request"]
    return {
        name: value for name, value in sent.items() if name not in ("model", "messages", "prompt", "deadline")
    }


def test_a_chat(client: OpenAI, http: httpx.Client) -> None:
    answer = chat(client, "Hello there tokens=2")
    job = record(http, answer.id)
    assert (job["status"], job["priority"], job["model"]) == ("succeeded", "interactive", MODEL)
    assert answer.object == "chat.completion"
    assert (answer.model, answer.created) == (MODEL, int(job["created_at"]))
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello there")
    assert choice.message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_json_that_was_cut_off_is_an_answer_of_finish_reason_length(
    client: OpenAI, http: httpx.Client
) -> None:
    """As OpenAI's clients expect; the job behind it failed."""
    text = 'cut=1 {"a":'
    answer = chat(client, text, response_format={"type": "json_object"})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ('{"a":', "length")
    job = record(http, answer.id)
    assert (job["status"], job["error"]["code"]) == ("failed", "incomplete")
    assert job["result"]["text"] == '{"a":'
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": text}],
            response_format={"type": "json_object"},
            stream=True,
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == '{"a":'
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_answer_names_its_job(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}]
    )
    assert raw.headers["x-request-id"] == "job_" + raw.parse().id.partition("-")[2]


def test_a_completion_is_of_raw_text(client: OpenAI, http: httpx.Client) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5)
    assert answer.object == "text_completion"
    assert [(c.index, c.text, c.finish_reason, c.logprobs) for c in answer.choices] == [
        (0, "Once upon", "stop", None)
    ]
    assert record(http, answer.id)["request"]["raw"] is True


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"max_tokens": 256}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 1, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -1}, {"seed": 2**63 - 1}),
        ({"stop": "end"}, {"stop": ["end"]}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1, "frequency_penalty": -1}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        ({"response_format": SCHEMA}, {"response_format": SCHEMA}),
        ({"tools": TOOLS, "tool_choice": "auto"}, {"tools": TOOLS, "tool_choice": "auto"}),
        (
            {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        ),
        ({"tools": TOOLS, "tool_choice": NAMED}, {"tools": TOOLS, "tool_choice": NAMED}),
        ({"n": 1, "stream": False, "user": "me", "store": True, "service_tier": "default"}, {}),
        ({"metadata": {"team": "x"}}, {"metadata": {"team": "x"}}),
        ({"extra_body": {"top_k": 5, "decoding": "normal"}}, {"top_k": 5, "decoding": "normal"}),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_options_reach_the_job(
    client: OpenAI, http: httpx.Client, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    sent = request_of(http, chat(client, "hi", **options))
    if "seed" not in expected:
        assert isinstance(sent.pop("seed"), int)
    assert sent == {"max_tokens": 256, **expected}


def test_a_conversation_with_tools(client: OpenAI, http: httpx.Client) -> None:
    first = chat(client, f"I look it up. {CALL}", tools=TOOLS)
    [choice] = first.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look it up.")
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    second = client.chat.completions.create(
        model=MODEL,
        messages=[
            {
                "role": "developer",
                "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}],
            },
            {"role": "user", "content": "Paris?", "name": "ann"},
            choice.message.model_dump(),  # as the client gives it back, with all its nulls
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ],
        tools=TOOLS,
    )
    assert second.choices[0].message.content == "rain"
    assert record(http, second.id)["request"]["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Paris?", "name": "ann"},
        {"role": "assistant", "content": "I look it up.", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]


def test_tool_choice_none_leaves_the_text_alone(client: OpenAI) -> None:
    [choice] = chat(client, CALL, tools=TOOLS, tool_choice="none").choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")


def test_logprobs_of_a_chat(client: OpenAI) -> None:
    [choice] = chat(client, "é stream=2", logprobs=True, top_logprobs=1).choices
    assert choice.logprobs is not None
    tokens = [
        {"token": "x", "bytes": [120], "logprob": -0.5},
        {"token": "x1", "bytes": [120, 49], "logprob": -0.5},
    ]
    assert [t.model_dump() for t in choice.logprobs.content or ()] == [
        {**token, "top_logprobs": [token]} for token in tokens
    ]
    [choice] = chat(client, "é stream=1", logprobs=True).choices
    assert choice.logprobs is not None
    assert [t.top_logprobs for t in choice.logprobs.content or ()] == [[]]


def test_logprobs_of_a_completion(client: OpenAI) -> None:
    [choice] = client.completions.create(model=MODEL, prompt="é stream=2", logprobs=1).choices
    assert choice.logprobs is not None
    assert choice.logprobs.model_dump() == {
        "tokens": ["x", "x1"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"x": -0.5}, {"x1": -0.5}],
        "text_offset": [0, 1],
    }


def test_several_answers_have_seeds_of_their_own(client: OpenAI, http: httpx.Client) -> None:
    answer = chat(client, "one two delay=0.2", n=3, seed=2**63 - 2)
    assert [(c.index, c.message.content) for c in answer.choices] == [(i, "one two") for i in range(3)]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 3)
    jobs = http.get("/v1/jobs", params={"limit": 3}).json()["data"]
    assert [job["request"]["seed"] for job in jobs[::-1]] == [2**63 - 2, 2**63 - 1, 0]
    assert record(http, answer.id)["id"] == jobs[-1]["id"]


def test_several_prompts_with_several_answers(client: OpenAI, http: httpx.Client) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a b", "c"], n=2, seed=5)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "a b"), (1, "a b"), (2, "c"), (3, "c")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    jobs = http.get("/v1/jobs", params={"limit": 4}).json()["data"]
    assert [job["request"]["seed"] for job in jobs[::-1]] == [5, 6, 5, 6]


def test_best_of_as_many_as_are_asked_for(client: OpenAI) -> None:
    assert len(client.completions.create(model=MODEL, prompt="a", n=2, best_of=2).choices) == 2


def test_the_asynchronous_client(gateway: GatewayProcess) -> None:
    async def several() -> list[ChatCompletion]:
        async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            asked = [
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"number {n}"}]
                )
                for n in range(20)
            ]
            return await asyncio.gather(*asked)

    answers = asyncio.run(several())
    assert [answer.choices[0].message.content for answer in answers] == [f"number {n}" for n in range(20)]


def test_without_a_model_the_only_one_answers(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert http.post("/v1/chat/completions", json=body).json()["model"] == MODEL


@pytest.mark.parametrize(
    ("script", "kind", "code", "param"),
    [
        ("fail=decode_failed", openai.InternalServerError, "decode_failed", None),
        (
            "fail=context_length_exceeded param=messages",
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
        (
            "fail=invalid_schema param=response_format",
            openai.BadRequestError,
            "invalid_schema",
            "response_format",
        ),
        ("fail=model_not_found param=model", openai.NotFoundError, "model_not_found", "model"),
    ],
)
def test_what_fails_in_the_worker(
    client: OpenAI, script: str, kind: type[openai.APIStatusError], code: str, param: str | None
) -> None:
    with pytest.raises(kind) as failed:
        chat(client, script)
    assert (failed.value.code, failed.value.param) == (code, param)
    with pytest.raises(kind) as failed:
        chat(client, script, stream=True)
    assert (failed.value.code, failed.value.param) == (code, param), "before the first token"


@pytest.mark.parametrize("script", ["fail=decode_failed", "delay=20"])
def test_the_official_client_repeats_nothing_that_has_ended(
    client: OpenAI, http: httpx.Client, script: str
) -> None:
    """As it does by default with 409 and 5xx: a prompt that kills workers would kill three times as many."""
    marker = {"m": f"once {script}"}

    def jobs() -> list[Any]:
        return list(http.get("/v1/jobs", params={"metadata[m]": marker["m"]}).json()["data"])

    with ThreadPoolExecutor(1) as pool, client.with_options(max_retries=2) as patient:
        asking = pool.submit(
            patient.completions.create, model=MODEL, prompt=script, extra_body={"metadata": marker}
        )
        if script == "delay=20":
            wait_until(lambda: len(jobs()) == 1)
            http.post(f"/v1/jobs/{jobs()[0]['id']}/cancel")
            wait_until(lambda: asking.done() or len(jobs()) > 1)
            for job in jobs():
                http.post(f"/v1/jobs/{job['id']}/cancel")
        assert isinstance(asking.exception(30), openai.APIStatusError)
    assert len(jobs()) == 1


def test_one_of_several_that_fails_fails_the_request(client: OpenAI, http: httpx.Client) -> None:
    """And the others are cancelled."""
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL, prompt=["delay=20 long", "fail=decode_failed delay=0.3"])
    failed, other = http.get("/v1/jobs", params={"limit": 2}).json()["data"]
    assert failed["status"] == "failed"
    ended = http.get(f"/v1/jobs/{other['id']}", headers={"Prefer": "wait=20"}).json()
    assert ended["status"] == "cancelled"


def test_a_job_that_somebody_cancels(client: OpenAI, http: httpx.Client) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=client.base_url, api_key="x", max_retries=0) as other:
            asking = asyncio.ensure_future(
                other.completions.create(
                    model=MODEL, prompt="delay=20", extra_body={"metadata": {"m": "somebody"}}
                )
            )
            while not (found := http.get("/v1/jobs", params={"metadata[m]": "somebody"}).json()["data"]):
                await asyncio.sleep(0.05)
            [job] = found
            http.post(f"/v1/jobs/{job['id']}/cancel")
            with pytest.raises(openai.ConflictError) as failed:
                await asking
            assert failed.value.code == "job_cancelled"

    asyncio.run(main())
