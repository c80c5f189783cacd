"""instructor: the default mode, a tool whose call is required, and JSON schemas."""

from __future__ import annotations

from functools import partial

import instructor
from harness import KEY, MODEL, QUESTION, URL, Person, is_person, run
from openai import OpenAI


def extract(mode: instructor.Mode | None) -> None:
    chosen = {} if mode is None else {"mode": mode}
    client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY), **chosen)
    messages = [{"role": "user", "content": QUESTION}]
    is_person(
        client.chat.completions.create(model=MODEL, messages=messages, response_model=Person, max_tokens=300)
    )


run(
    {
        "the default mode": partial(extract, None),
        "`Mode.TOOLS`": partial(extract, instructor.Mode.TOOLS),
        "`Mode.JSON_SCHEMA`": partial(extract, instructor.Mode.JSON_SCHEMA),
    }
)
