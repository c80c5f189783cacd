"""What an engine does on a device without memory for all that it is asked for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from engine import EngineConfig, ModelLoadError
from engine.core.engine import Engine
from engine.core.layouts import LANE_SLACK
from engine.llama.context import padded
from engine.llama.devices import devices
from engine.llama.model import Model, read_shape
from tests.engine.helpers.drive import alone, completions, prompts, request, run
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.gpu.measures.heavy import write_heavy_gguf

# Vulkan alone can be told that its device has less: bytes of a buffer, between those of 32 and of 64 lanes.
LIMIT = "GGML_VK_FORCE_MAX_BUFFER_SIZE"
SOFTWARE = "llvmpipe"  # Mesa's driver, which gives more memory than it says, as long as the process has some
SLOTS, CELLS = 64, 8192  # a lane has as many cells as the tiny model's context
BEYOND = 2  # times the memory of all devices


def measure(folder: Path) -> Iterator[str]:
    model = write_tiny_gguf(folder / "tiny.gguf")
    shape = read_shape(model)
    yield f"weights larger than the device: {in_a_process(too_heavy, str(folder / 'heavy.gguf'))}"
    yield f"a cache larger than the device: {in_a_process(too_large, model)}"
    if not any(device.name.startswith("Vulkan") for device in devices()):
        yield "memory for the lanes of some requests alone: not run (only Vulkan's can be limited)"
        return
    lane_bytes = padded(shape.trained_context + LANE_SLACK) * shape.cell_bytes
    limited = {LIMIT: str(SLOTS * lane_bytes * 3 // 4)}
    yield f"memory for the lanes of some requests alone: {in_a_process(served, model, limited)}"


def in_a_process(case: Callable[[str], str], model: str, environment: Mapping[str, str] | None = None) -> str:
    """What it returns, or what it says last: llama.cpp may end the process."""
    command = [sys.executable, "-m", "tests.gpu.measures.memory", case.__name__, model]
    env = {**os.environ, **(environment or {})}
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    told = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()
    return told[-1] if told else f"ended with {ended.returncode}"


def too_heavy(model: str) -> str:
    room = sum(device.total for device in devices())
    write_heavy_gguf(Path(model), BEYOND * room)
    if all(SOFTWARE in device.description for device in devices()):
        limit = Path(model).stat().st_size + room
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        Model(model)
    except ModelLoadError as error:
        return f"refused: {error.message.replace(model, 'MODEL')}"
    return "taken, although the device has no room for them"


def too_large(model: str) -> str:
    cells = BEYOND * sum(device.total for device in devices()) // read_shape(model).cell_bytes
    try:
        Engine(EngineConfig(model=model, slots=2, kv_cells=cells), Model(model))
    except ModelLoadError as error:
        return f"refused: {error.message.replace(model, 'MODEL')}"
    return "taken, although the device has no room for it"


def served(model: str) -> str:
    """On a device that is limited."""
    requests = [request(f"r{i}", text, max_tokens=8) for i, text in enumerate(prompts(12))]
    engine = Engine(EngineConfig(model=model, slots=SLOTS, kv_cells=CELLS, kv_type="f16"), Model(model))
    results = completions(run(engine, requests))
    reference = alone(model, requests, kv_type="f16")
    same = sum(results[name].tokens == one.tokens for name, one in reference.items())
    lanes = engine.layouts.lanes.lanes if engine.layouts.lanes else 0
    return (
        f"{engine.info.slots} requests at once of {SLOTS} that were asked for, in {lanes} lanes; {same} of "
        f"{len(reference)} answers are those of requests alone"
    )


if __name__ == "__main__":
    cases = {case.__name__: case for case in (too_heavy, too_large, served)}
    print(cases[sys.argv[1]](sys.argv[2]))
