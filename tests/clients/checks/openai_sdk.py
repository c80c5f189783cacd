"""OpenAI's own client: chats, responses, tools, schemas, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from harness import KEY, MODEL, QUESTION, URL, Person, is_person, run
from openai import OpenAI, pydantic_function_tool

client = OpenAI(base_url=URL, api_key=KEY)
ASKED: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200}
RESPONSE: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": 200}


def chat() -> None:
    whole = client.chat.completions.create(**ASKED).choices[0].message.content
    chunks = client.chat.completions.create(**ASKED, stream=True)
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def chat_schema() -> None:
    is_person(client.chat.completions.parse(**ASKED, response_format=Person).choices[0].message.parsed)


def chat_tool() -> None:
    tools = [pydantic_function_tool(Person)]
    parsed = client.chat.completions.parse(**ASKED, tools=tools, tool_choice="required")
    calls = parsed.choices[0].message.tool_calls
    assert calls
    is_person(calls[0].function.parsed_arguments)


def responses() -> None:
    first = client.responses.create(**RESPONSE)
    assert first.output_text
    second = client.responses.create(**{**RESPONSE, "input": "And why?"}, previous_response_id=first.id)
    assert second.output_text
    events = list(client.responses.create(**RESPONSE, stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == first.output_text


def responses_schema() -> None:
    is_person(client.responses.parse(**RESPONSE, text_format=Person).output_parsed)


def responses_tool() -> None:
    tool: Any = {"type": "function", "name": "person", "parameters": Person.model_json_schema()}
    answer = client.responses.create(**RESPONSE, tools=[tool], tool_choice="required")
    [call, *_] = answer.output
    assert call.type == "function_call"
    Person.model_validate(json.loads(call.arguments))


run(
    {
        "chat, whole and streamed": chat,
        "chat with a schema (`parse`)": chat_schema,
        "chat with a tool": chat_tool,
        "responses, streamed and continued": responses,
        "responses with a schema (`parse`)": responses_schema,
        "responses with a tool": responses_tool,
    }
)
