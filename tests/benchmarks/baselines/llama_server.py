"""Baseline (c): the same GGUF through llama.cpp's own `llama-server`, greedy, all requests sent at once.

The server is no dependency: build it from the llama.cpp that llama-cpp-python's source carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from common.processor import usable_cores
from tests.benchmarks import common
from tests.benchmarks.common import Throughput
from tests.support.servers import free_port

START_LIMIT_S = 120.0  # loading a large model from a cold disk
STOP_LIMIT_S = 10.0  # then it is killed
REQUEST_LIMIT_S = 3600.0  # a request may wait for all the others on a slow machine
READY_POLL_S = 0.1
# Which our engine changes, and what it starts would inherit.
OPENMP_DEFAULT = {"GOMP_SPINCOUNT": "300000", "OMP_WAIT_POLICY": "passive"}


def measure(
    server: Path,
    model: Path,
    prompts: list[str],
    max_tokens: int = common.OUTPUT_TOKENS,
    slots: int = common.SLOTS,
    ignore_eos: bool = False,
) -> Throughput:
    """Starting and one warm-up request are not counted. The server is stopped whatever happens.

    ignore_eos: the end of an answer is banned, so that each has max_tokens. Raises ToolFailed.
    """
    context = common.context_needed(model, prompts, max_tokens)
    with running(server, model, slots, context) as url:
        try:
            return asyncio.run(_drive(url, prompts, max_tokens, slots, ignore_eos))
        except httpx.TransportError as error:
            raise common.ToolFailed(f"llama-server broke off: {error or type(error).__name__}") from error


@contextlib.contextmanager
def running(
    server: Path, model: Path, slots: int, context: int, options: Iterable[str] = ()
) -> Iterator[str]:
    """A llama-server on a free loopback port; `context` tokens for each slot. Yields its address."""
    port = free_port()
    command = [str(server), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "-np",
        str(slots),
        "-c",
        str(slots * context),
        "-t",
        str(usable_cores()),
        "--no-webui",
        *options,
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **OPENMP_DEFAULT},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < give_up_at:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").status_code == httpx.codes.OK:
                return
        time.sleep(READY_POLL_S)
    log.seek(0)
    said = common.last_words(log.read().decode(errors="replace"))
    raise common.ToolFailed(f"llama-server did not come up: {said}")


async def _drive(url: str, prompts: list[str], max_tokens: int, slots: int, ignore_eos: bool) -> Throughput:
    # All at once, as the engine gets them: the server queues those without a slot, and wants no client's time
    # between two answers.
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_LIMIT_S, limits=limits) as client:
        await _complete(client, common.WARM_UP_PROMPT, common.WARM_UP_TOKENS, False)
        started = time.perf_counter()

        async def one(prompt: str) -> tuple[_Usage, float]:
            usage = await _complete(client, prompt, max_tokens, ignore_eos)
            return usage, time.perf_counter() - started

        answers = await asyncio.gather(*map(one, prompts))
        wall_s = time.perf_counter() - started
    usages = [usage for usage, _ in answers]
    return Throughput(
        requests=len(usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        generated_tokens=sum(usage.generated_tokens for usage in usages),
        wall_s=wall_s,
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        thin_s=common.thin_end((ended for _, ended in answers), slots),
    )


@dataclass(frozen=True, slots=True)
class _Usage:
    prompt_tokens: int
    cached_tokens: int  # of these, found in the slot's cache
    generated_tokens: int


async def _complete(client: httpx.AsyncClient, prompt: str, max_tokens: int, ignore_eos: bool) -> _Usage:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": ignore_eos,
    }
    response = await client.post("/v1/chat/completions", json=body)
    if response.is_error:
        raise common.ToolFailed(
            f"llama-server answered {response.status_code}: {response.text[:200].strip()}"
        )
    answer = response.json()
    usage, timings = answer["usage"], answer["timings"]
    return _Usage(usage["prompt_tokens"], timings["cache_n"], usage["completion_tokens"])
