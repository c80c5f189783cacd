"""LangChain: structured output by each method, tools, streams."""

from __future__ import annotations

from functools import partial
from typing import Any

from harness import KEY, MODEL, QUESTION, URL, Person, is_person, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, max_tokens=300, temperature=0)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def structured(method: Any) -> None:
    is_person(model.with_structured_output(Person, method=method).invoke(QUESTION))


def json_mode() -> None:
    raw = model.with_structured_output(None, method="json_mode").invoke(f"{QUESTION} Answer in JSON.")
    assert isinstance(raw, dict)


def tools() -> None:
    asked = [HumanMessage("What is 2 + 3?")]
    answer = model.bind_tools([add], tool_choice="any").invoke(asked)
    call = answer.tool_calls[0]
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    assert model.bind_tools([add]).invoke([*asked, answer, result])


def stream() -> None:
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == model.invoke(QUESTION).text


def responses() -> None:
    speaking = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, use_responses_api=True, max_tokens=300)
    assert speaking.invoke(QUESTION).text
    is_person(speaking.with_structured_output(Person, method="json_schema").invoke(QUESTION))


run(
    {
        "chat, whole and streamed": stream,
        "`with_structured_output`, `json_schema`": partial(structured, "json_schema"),
        "`with_structured_output`, `function_calling`": partial(structured, "function_calling"),
        "`with_structured_output`, `json_mode`": json_mode,
        "tools and their results": tools,
        "responses, with a schema": responses,
    }
)
