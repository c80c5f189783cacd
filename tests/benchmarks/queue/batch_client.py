"""Batches as a client sends them to a stack that runs."""

from __future__ import annotations

import json
from typing import Any

import openai

from tests.benchmarks.queue.queue_overhead import Running

ENDPOINT = "/v1/completions"


def line(number: int, prompt: str, tokens: int) -> str:
    body = {"prompt": prompt, "max_tokens": tokens}
    return json.dumps({"custom_id": f"id-{number}", "method": "POST", "url": ENDPOINT, "body": body})


def client_of(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="benchmark", timeout=600)


def start(client: openai.OpenAI, prompts: list[str], tokens: int = 1, **extra: Any) -> openai.types.Batch:
    content = "".join(line(n, prompt, tokens) + "\n" for n, prompt in enumerate(prompts)).encode()
    uploaded = client.files.create(file=("lines.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=uploaded.id, endpoint=ENDPOINT, completion_window="24h", extra_body=extra
    )
