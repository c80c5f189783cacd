"""What one body may cost: a few megabytes, made to be as wrong as they can be, are refused quickly."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from tasks.base.errors import InvalidRequest
from tasks.schema.job_request import MAX_MESSAGES, MOST_FINDINGS, JobRequest, parse, read_job
from tasks.schema.messages import MAX_TOOL_CALLS
from tasks.schema.openai_requests import CHAT, body_fields

MANY = 30_000
MOST_BYTES = 20_000_000  # of memory, where describing each mistake took ten times that
PROMPT = '"prompt": "x"'
NAMES = ",".join(f'"k{n}": 0' for n in range(MANY))
BODIES = {
    "messages": f'{{"messages": [{",".join(["1"] * MANY)}]}}',
    "empty messages": f'{{"messages": [{",".join(["{}"] * MANY)}]}}',
    "calls": f'{{"messages": [{{"role": "assistant", "tool_calls": [{",".join(["1"] * MANY)}]}}]}}',
    "unknown fields": f"{{{PROMPT}, {NAMES}}}",
    "biases": f'{{{PROMPT}, "logit_bias": {{{NAMES}}}}}',
    "metadata": f'{{{PROMPT}, "metadata": {{{NAMES}}}}}',
    "stops": f'{{{PROMPT}, "stop": [{",".join(["1"] * MANY)}]}}',
    "tools": f'{{{PROMPT}, "tools": [{",".join(["1"] * MANY)}]}}',
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.slow
def test_however_much_is_wrong_one_thing_is_said(name: str) -> None:
    body = BODIES[name]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as caught:
            parse(body.encode(), JobRequest)
        found = read_job(json.loads(body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, list)
    assert 1 <= len(found) <= max(MOST_FINDINGS, MAX_MESSAGES + 1)
    assert len(str(caught.value)) < 200
    assert peak < MOST_BYTES


def test_the_most_messages_and_calls_are_taken() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [call] * MAX_TOOL_CALLS}
    assert isinstance(read_job({"messages": [message]}), JobRequest)
    [too_many] = read_job({"messages": [{**message, "tool_calls": [call] * (MAX_TOOL_CALLS + 1)}]})  # type: ignore[misc]
    assert (too_many.field, "128" in too_many.message) == ("messages.0.tool_calls", True)
    user = {"role": "user", "content": "x"}
    assert isinstance(read_job({"messages": [user] * MAX_MESSAGES}), JobRequest)
    [too_many] = read_job({"messages": [user] * (MAX_MESSAGES + 1)})  # type: ignore[misc]
    assert (too_many.field, "2048" in too_many.message) == ("messages", True)


@pytest.mark.parametrize(
    "messages", [[1] * MANY, [{"role": "user", "content": [1] * MANY}], [{"role": "user", "audio": 1}] * MANY]
)
def test_a_chat_of_the_other_format_costs_no_more(messages: list[Any]) -> None:
    fields, problems = body_fields(CHAT, {"messages": messages})
    found = problems or read_job(fields)
    assert isinstance(found, list)
    assert 1 <= len(found) <= max(MOST_FINDINGS, MAX_MESSAGES) + 1
