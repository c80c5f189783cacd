"""LiteLLM: text, schemas, tools, responses."""

from __future__ import annotations

import json
from typing import Any

import litellm
from harness import KEY, MODEL, QUESTION, URL, Person, run

ASKED: Any = {
    "model": f"openai/{MODEL}",
    "api_base": URL,
    "api_key": KEY,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 300,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "person", "parameters": Person.model_json_schema()},
}


def chat() -> None:
    whole = litellm.completion(**ASKED).choices[0].message.content
    chunks = litellm.completion(**ASKED, stream=True)
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def schema() -> None:
    answer = litellm.completion(**ASKED, response_format=Person)
    Person.model_validate_json(answer.choices[0].message.content)


def tools() -> None:
    for stream in (False, True):
        answer = litellm.completion(**ASKED, tools=[TOOL], tool_choice="required", stream=stream)
        if stream:
            answer = litellm.stream_chunk_builder(list(answer))
        [call, *_] = answer.choices[0].message.tool_calls
        Person.model_validate(json.loads(call.function.arguments))


def responses() -> None:
    asked = {name: value for name, value in ASKED.items() if name not in ("messages", "max_tokens")}
    answer = litellm.responses(**asked, input=QUESTION, max_output_tokens=300)
    assert answer.output[0].content[0].text


run(
    {
        "chat, whole and streamed": chat,
        "schema": schema,
        "tools, whole and streamed": tools,
        "responses": responses,
    }
)
