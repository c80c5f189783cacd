"""T(n) of the packaged model on the device, and what the policy makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine import EngineConfig
from engine.llama.model import Model, default_model_path
from engine.speculative import latency_model
from engine.speculative.controller import FLOOR_NODES
from engine.speculative.row_timer import largest_timed, row_timer
from engine.speculative.verification_budget import choose_nodes, floor

REQUESTS = (1, 4, 16)
LIKELY = 0.7  # path probability of a draft's first token, and of each further one after the one before
DEPTH = 8  # tokens of a draft


def measure(_folder: Path) -> Iterator[str]:
    config = EngineConfig()
    rows = [n for n in latency_model.ROWS if n <= largest_timed(config)]
    with row_timer(Model(default_model_path()), config) as timer:
        profile = latency_model.measure(timer, rows)
    points = ", ".join(f"{rows}: {seconds * 1e3:.3g}" for rows, seconds in profile.points.items())
    yield f"T(n) in ms, by rows: {points}"
    yield (
        f"another number of rows: {profile.switch_s * 1e3:.3g} ms; the second call with as many: "
        f"{profile.settle_s * 1e3:.3g} ms; a row's 1,000 tokens: {profile.row_cell_s * 1e6:.3g} ms"
    )
    for requests in REQUESTS:
        likely = sorted(
            (LIKELY**depth for depth in range(1, DEPTH + 1) for _ in range(requests)), reverse=True
        )
        verified = choose_nodes(requests, likely, profile.seconds)
        least = floor(requests, profile.seconds, FLOOR_NODES)
        yield (
            f"{requests} requests: a draft token pays from a probability of {max(0.0, least):.2g} on; of "
            f"{DEPTH} with {LIKELY:g} each, {verified / requests:.3g} a request are verified"
        )
