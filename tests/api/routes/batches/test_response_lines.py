"""Lines of a batch for the Responses API."""

from __future__ import annotations

import openai
from openai.types.responses import Response

from tests.api.routes.batches.batch_client import chat, create, end, entries

URL = "/v1/responses"


def test_answers_to_lines_are_responses(client: openai.OpenAI) -> None:
    bodies = [
        {"input": "hello", "instructions": "Be brief.", "model": "scripted"},
        {"input": [{"role": "user", "content": "word cut=1"}], "model": "scripted"},
        {"input": "hi", "previous_response_id": f"resp_{'0' * 32}", "model": "scripted"},
        {"input": "hi", "background": True, "model": "scripted"},
    ]
    lines = [{**chat(n), "url": URL, "body": body} for n, body in enumerate(bodies)]
    done = end(client, create(client, lines, endpoint=URL))
    first, second = (
        Response.model_validate(entry["response"]["body"]) for entry in entries(client, done.output_file_id)
    )
    assert (first.output_text, first.status, first.instructions) == ("hello", "completed", "Be brief.")
    assert (second.output_text, second.status) == ("word", "incomplete")
    refused = [entry["error"] for entry in entries(client, done.error_file_id)]
    assert [error["param"] for error in refused] == ["body.previous_response_id", "body.background"]
