"""What streaming adds: from the engine's token to the client's, through worker, Redis and gateway.

    python -m tests.benchmarks.queue.streaming

The scripted engine writes into each token when it made it. Client and worker read the same clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass

import httpx

from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, running_stack

STREAMS = (1, 4, 16)  # at once; 16 is as many as run in the engine by default
TOKENS = 300  # of each stream
RATE = 30.0  # tokens/s of each stream: what the default model gives on two cores, and a fast reader takes
WARM_UP_TOKENS = 20
REQUEST_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Added:
    """Milliseconds from a token in the engine to its text at the client, over all tokens of all streams."""

    streams: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    tokens_per_s: float

    def line(self) -> str:
        return (
            f"{self.streams:3} streams, {self.tokens_per_s:5.0f} tokens/s in all: engine's token to "
            f"client's p50 {self.p50_ms:.1f} ms, p95 {self.p95_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"
        )


def measure(streams: tuple[int, ...] = STREAMS, tokens: int = TOKENS, rate: float = RATE) -> list[Added]:
    """Start the stack, warm it up, measure, and stop it whatever happens. Raises BenchmarkFailed."""
    with running_stack(slots=max(streams)) as url:
        return asyncio.run(_drive(url, streams, tokens, rate))


async def _drive(url: str, streams: tuple[int, ...], tokens: int, rate: float) -> list[Added]:
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_LIMIT_S) as client:
        await _stream(client, WARM_UP_TOKENS, rate)
        return [await _together(client, count, tokens, rate) for count in streams]


async def _together(client: httpx.AsyncClient, count: int, tokens: int, rate: float) -> Added:
    began = time.perf_counter()
    delays = await asyncio.gather(*(_stream(client, tokens, rate) for _ in range(count)))
    elapsed_s = time.perf_counter() - began
    all_ms = [delay * 1000 for stream in delays for delay in stream]
    if len(all_ms) != count * tokens:
        raise BenchmarkFailed(f"{count * tokens} tokens were made, {len(all_ms)} arrived")
    percentiles = statistics.quantiles(all_ms, n=100, method="inclusive")
    return Added(count, percentiles[49], percentiles[94], percentiles[98], len(all_ms) / elapsed_s)


async def _stream(client: httpx.AsyncClient, tokens: int, rate: float) -> list[float]:
    """Seconds that each token took."""
    body = {"prompt": f"stamp=1 tokens={tokens} delay={tokens / rate}", "stream": True}
    delays: list[float] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise BenchmarkFailed(f"{response.status_code} {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            arrived = time.time()
            if line.startswith("data: {"):
                text = json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                delays += [arrived - float(stamp) for stamp in text.split()]
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS), help="so many at once")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each stream")
    parser.add_argument("--rate", type=float, default=RATE, help="tokens/s of each stream")
    arguments = parser.parse_args()
    for added in measure(tuple(arguments.streams), arguments.tokens, arguments.rate):
        print(added.line())


if __name__ == "__main__":
    main()
