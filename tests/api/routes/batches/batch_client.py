"""Short ways to say what the tests of batches say often."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
from openai.types import Batch

from tasks.records.batch import ENDED


def chat(number: int, content: str = "hello there", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": f"id-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "scripted", "messages": [{"role": "user", "content": content}], **body},
    }


def upload(client: openai.OpenAI, lines: list[Any]) -> str:
    content = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return client.files.create(file=("lines.jsonl", content.encode()), purpose="batch").id


def create(client: openai.OpenAI, lines: list[Any], **fields: Any) -> Batch:
    return client.batches.create(
        input_file_id=upload(client, lines),
        completion_window="24h",
        **{"endpoint": "/v1/chat/completions", **fields},
    )


def end(client: openai.OpenAI, batch: Batch, timeout_s: float = 30) -> Batch:
    give_up = time.monotonic() + timeout_s
    while batch.status not in ENDED:
        assert time.monotonic() < give_up, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def entries(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
