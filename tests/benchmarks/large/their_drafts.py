"""`llama-server` plain and with its drafts from n-grams, over the same file: decoding alone is timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from engine.tools.decode_benchmark import Pass
from tests.benchmarks.baselines import llama_server
from tests.benchmarks.baselines.speculation import SPECS
from tests.benchmarks.common import ToolFailed

PLAIN = ("--spec-type", "none")
SOURCE = "n-grams"  # of their drafts


class Server:
    """One that runs, with a slot for each request."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=llama_server.REQUEST_LIMIT_S)

    def close(self) -> None:
        self._client.close()

    def measure(self, prompts: Sequence[str], max_tokens: int) -> Pass:
        """All at once, after their prompts were computed. Raises ToolFailed.

        Requests that others outlast make those faster, so that tokens a second are a little too many.
        """
        self._complete(prompts, 1)  # leaves each prompt in its slot
        timings = self._complete(prompts, max_tokens)
        tokens = sum(timing["predicted_n"] - 1 for timing in timings)
        verified, accepted = (sum(t.get(key, 0) for t in timings) for key in ("draft_n", "draft_n_accepted"))
        found = Pass(
            seconds=sum(timing["predicted_ms"] for timing in timings) / 1e3 / len(prompts),
            tokens=tokens,
            steps=tokens - accepted,
            verified=verified,
            accepted=accepted,
        )
        found.verified_of[SOURCE], found.accepted_of[SOURCE] = verified, accepted
        return found

    def _complete(self, prompts: Sequence[str], max_tokens: int) -> list[dict[str, Any]]:
        """llama-server's timings of each answer."""

        def one(slot: int) -> dict[str, Any]:
            body = {
                "messages": [{"role": "user", "content": prompts[slot]}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "cache_prompt": True,
                "id_slot": slot,
            }
            response = self._client.post("/v1/chat/completions", json=body)
            if response.is_error:
                raise ToolFailed(
                    f"llama-server answered {response.status_code}: {response.text[:200].strip()}"
                )
            return dict(response.json()["timings"])

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, range(len(prompts))))


@contextmanager
def servers(
    program: Path, model: Path, requests: int, context: int, spec: str
) -> Iterator[dict[str, Server]]:
    """By name: one that decodes plainly, and one with the drafts of `spec`, of SPECS. Raises ToolFailed."""
    with ExitStack() as stack:
        started = {}
        for name, options in (("plain", PLAIN), (spec, SPECS[spec])):
            url = stack.enter_context(llama_server.running(program, model, requests, context, options))
            server = started[f"llama-server, {name}"] = Server(url)
            stack.callback(server.close)
        yield started
