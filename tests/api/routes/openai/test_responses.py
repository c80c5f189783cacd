"""The Responses API through the official client: whole, streamed, continued, stored or not."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.api.routes.openai.test_whole import CALL, MODEL

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
SCHEMA: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
NEW_ID = f"resp_{uuid.uuid4().hex}"


def ask(client: OpenAI, given: Any, **options: Any) -> Response:
    answer = client.responses.create(model=MODEL, input=given, **options)
    assert isinstance(answer, Response)
    return answer


def job_of(http: httpx.Client, response: Response) -> dict[str, Any]:
    job: dict[str, Any] = http.get(f"/v1/jobs/job_{response.id.removeprefix('resp_')}").json()
    return job


def test_a_text(client: OpenAI, http: httpx.Client) -> None:
    answer = ask(client, "Héllo 🌱", instructions="Be brief.", max_output_tokens=9, metadata={"k": "v"})
    assert (answer.output_text, answer.status, answer.error) == ("Héllo 🌱", "completed", None)
    assert (answer.instructions, answer.max_output_tokens, answer.metadata) == ("Be brief.", 9, {"k": "v"})
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    job = job_of(http, answer)
    assert job["request"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Héllo 🌱"},
    ]
    assert client.responses.retrieve(answer.id).output == answer.output


def test_an_answer_that_is_cut_off(client: OpenAI) -> None:
    answer = ask(client, "word cut=1")
    assert answer.incomplete_details is not None
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output_text == "word"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": SCHEMA, "verbosity": "low"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "get_weather", "parameters": PARAMETERS, "strict": False},
                    }
                ],
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            },
        ),
        ({"temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": False}, None),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": 2}),
        ({"extra_body": {"top_k": 5}}, {"top_k": 5}),
        ({"reasoning": {"effort": "low"}, "truncation": "disabled", "user": "u", "include": []}, {}),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_options_reach_the_job(
    client: OpenAI, http: httpx.Client, options: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    answer = ask(client, "hi", **options)
    sent = job_of(http, answer)["request"]
    for name, value in (options if expected is None else expected).items():
        assert sent[name] == value
    if expected == {}:
        assert sent.keys() <= {"model", "messages", "max_tokens", "seed", "deadline", "response"}


def test_a_conversation_goes_on_where_it_is_stored(client: OpenAI, http: httpx.Client) -> None:
    first = ask(client, f"I look. {CALL}", instructions="Be brief.", tools=[TOOL])
    text, call = first.output
    assert text.type == "message"
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = ask(client, [result], previous_response_id=first.id, instructions="Be long.", tools=[TOOL])
    assert (second.output_text, second.previous_response_id) == ("rain", first.id)
    expected = [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": f"I look. {CALL}"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": call.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "rain"},
    ]
    assert job_of(http, second)["request"]["messages"] == expected
    given = [{"role": "user", "content": f"I look. {CALL}"}, *first.model_dump()["output"], result]
    again = ask(client, given, instructions="Be long.", tools=[TOOL], store=False)
    assert job_of(http, again)["request"]["messages"] == expected, "the items as the client gives them back"


def test_what_is_not_stored_is_not_found(client: OpenAI) -> None:
    kept, dropped = ask(client, "hi"), ask(client, "hi", store=False)
    assert [answer.model_dump()["store"] for answer in (kept, dropped)] == [True, False]
    deleted = client.responses.with_raw_response.delete(kept.id).http_response.json()
    assert deleted == {"id": kept.id, "object": "response", "deleted": True}
    for unknown in (kept.id, dropped.id, NEW_ID, "resp_1"):
        for act in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError) as missing:
                act(unknown)
            assert missing.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, "hi", previous_response_id=unknown)
        assert refused.value.param == "previous_response_id"


def test_a_chat_is_no_response(client: OpenAI) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(chat.id.replace("chatcmpl-", "resp_"))


def test_a_stream_is_the_answer(client: OpenAI) -> None:
    """The client puts it together from all kinds of events."""
    with client.responses.stream(
        model=MODEL, input=f"Well. {CALL} stream=2 delay=0.3", tools=[TOOL]
    ) as stream:
        events = list(stream)
        whole = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in whole.output] == [
        "message",
        "function_call",
        "message",
        "function_call",
    ]
    stored = client.responses.retrieve(whole.id)
    assert [item.id for item in stored.output] == [item.id for item in whole.output]
    assert stored.output_text == whole.output_text == "Well.Well."


def test_a_text_comes_in_pieces(client: OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="a b stream=4 delay=0.4", stream=True)
    events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 2
    assert events[-1].type == "response.completed"
    assert "".join(deltas) == events[-1].response.output_text


def test_a_failure_in_a_stream(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        list(client.responses.create(model=MODEL, input="fail=broken", stream=True))
    stream = client.responses.create(model=MODEL, input="a stream=4 delay=1 fail=broken", stream=True)
    last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "broken"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"store": "yes"}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"messages": []}, "messages"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"no_such": 1}, "no_such"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_what_is_refused_names_its_field(http: httpx.Client, options: dict[str, Any], param: str) -> None:
    refused = http.post("/v1/responses", json={"model": MODEL, "input": "hi", **options})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
