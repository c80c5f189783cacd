"""Baseline (c): the same GGUF through llama.cpp's own `llama-server`, as many clients as slots, greedy.

    python -m tests.benchmarks.baselines.llama_server --server llama-server --prompts spec_bench_dev.jsonl

The server is no dependency: build it from the llama.cpp that llama-cpp-python's source carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import httpx

from tests.benchmarks import common
from tests.benchmarks.common import Throughput

START_LIMIT_S = 120.0  # loading a large model from a cold disk
STOP_LIMIT_S = 10.0  # then it is killed
REQUEST_LIMIT_S = 3600.0  # a request may wait for all the others on a slow machine
READY_POLL_S = 0.1
OPENMP_DEFAULT = {"GOMP_SPINCOUNT": "300000"}  # which our engine changes, and what it starts would inherit


def measure(
    server: Path,
    model: Path,
    prompts: list[str],
    max_tokens: int = common.OUTPUT_TOKENS,
    slots: int = common.SLOTS,
    options: Iterable[str] = (),
) -> Throughput:
    """Starting and one warm-up request are not counted. The server is stopped whatever happens."""
    context = common.context_needed(model, prompts, max_tokens)
    with running(server, model, slots, context, options) as url:
        return asyncio.run(_drive(url, prompts, max_tokens, slots))


@contextlib.contextmanager
def running(
    server: Path, model: Path, slots: int, context: int, options: Iterable[str] = ()
) -> Iterator[str]:
    """A llama-server on a free loopback port; `context` tokens for each slot. Yields its address."""
    port = _free_port()
    command = [str(server), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "-np",
        str(slots),
        "-c",
        str(slots * context),
        "-t",
        str(common.cores()),
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


async def _drive(url: str, prompts: list[str], max_tokens: int, clients: int) -> Throughput:
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_LIMIT_S, limits=limits) as client:
        await _complete(client, common.WARM_UP_PROMPT, common.WARM_UP_TOKENS)
        remaining = iter(prompts)
        usages: list[dict[str, int]] = []

        async def one_client() -> None:
            for prompt in remaining:
                usages.append(await _complete(client, prompt, max_tokens))

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one_client())
        wall_s = time.perf_counter() - started
    return Throughput(
        requests=len(usages),
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        generated_tokens=sum(usage["completion_tokens"] for usage in usages),
        wall_s=wall_s,
    )


async def _complete(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> dict[str, int]:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    usage: dict[str, int] = response.json()["usage"]
    return usage


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--server", type=common.program, required=True, help="the llama-server binary")
    parser.add_argument("--requests", type=int, default=common.SLOTS, help="requests at once: slots, clients")
    arguments = parser.parse_args()
    prompts = common.load_spec_bench(arguments.prompts, arguments.limit)
    model = arguments.model or common.default_model()
    figure = measure(arguments.server, model, prompts, arguments.max_tokens, arguments.requests)
    print(figure.line(f"llama-server -np {arguments.requests}"))


if __name__ == "__main__":
    main()
