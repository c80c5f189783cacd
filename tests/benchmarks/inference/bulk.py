"""Runs many prompts through the engine of a checkout: `python bulk.py < JSON`, in its folder.

JSON: {"prompts", "slots", "weights", "max_tokens", "long"}; long: a prompt that is sent while the others are
decoded. Prints one JSON object, see `measure`. It imports nothing of this checkout, which may be a later one.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def measure(task: dict[str, Any]) -> dict[str, float]:
    """all, decoding: emitted tokens a second of all steps, and of those without prompt rows.

    pause: seconds of the longest step while the long prompt is computed; 0 without one.
    """
    from engine import EngineConfig, Request, SamplingParams
    from engine.core.engine import Engine
    from engine.weights.format_selection import open_model

    config = EngineConfig(slots=task["slots"], weights=task["weights"], speculation=False)
    engine = Engine(config, open_model(config))

    def add(prompts: list[str], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            request = Request(id=f"{time.perf_counter()}-{i}", prompt=prompt, sampling=params)
            engine.add(engine.prepare(request, time.monotonic()))

    def steps() -> list[tuple[float, int, int]]:
        """Of each: seconds, emitted tokens, prompt rows."""
        found = []
        while not engine.idle:
            began = time.perf_counter()
            report = engine.step()
            found.append((time.perf_counter() - began, report.emitted, report.prompt_rows))
        return found

    add(["Say hello."] * task["slots"], 4)  # the first calls build graphs
    steps()
    add(task["prompts"], task["max_tokens"])
    ran = steps()
    plain = [(seconds, emitted) for seconds, emitted, prompt_rows in ran if not prompt_rows]
    pause = 0.0
    if task["long"]:
        add(["Count to one hundred."] * (task["slots"] - 1), 64)
        while engine.step().prompt_rows or engine.scheduler.waiting:
            pass
        add([task["long"]], 1)
        pause = max(seconds for seconds, _, prompt_rows in steps() if prompt_rows)
    return {
        "all": sum(emitted for _, emitted, _ in ran) / sum(seconds for seconds, _, _ in ran),
        "decoding": sum(emitted for _, emitted in plain) / sum(seconds for seconds, _ in plain),
        "pause": pause,
    }


if __name__ == "__main__":
    sys.path.insert(0, ".")
    print(json.dumps(measure(json.load(sys.stdin))))
