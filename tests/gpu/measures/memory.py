"""What an engine does on a device without memory for all that it is asked for."""

from __future__ import annotations

import resource
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
from tests.gpu.items import MEASURED
from tests.gpu.measures.heavy import write_heavy_gguf
from tests.gpu.running import run_process

# Vulkan alone can be told that its device has less: bytes of a buffer, between those of 32 and of 64 lanes.
LIMIT = "GGML_VK_FORCE_MAX_BUFFER_SIZE"
SOFTWARE = "llvmpipe"  # Mesa's driver, which gives more memory than it says, as long as the process has some
SLOTS, CELLS = 64, 8192  # a lane has as many cells as the tiny model's context
BEYOND = 2  # times the memory of all devices, for a cache
MORE = 10**9  # bytes beyond it, for weights: few, since Linux reads the whole file before the device is asked


class CaseDied(Exception):
    """Names the cases whose processes did not end well."""


def measure(folder: Path) -> Iterator[str]:
    """Each case in a process of its own, which llama.cpp may end. Raises CaseDied after the last one."""
    names = [device.name for device in devices()]
    if not names:
        yield "not run: there is no GPU"
        return
    died = []

    def outcome(case: Callable[[str], str], model: str, environment: Mapping[str, str] | None = None) -> str:
        arguments = ["-m", "tests.gpu.measures.memory", case.__name__, model]
        ended = run_process(arguments, environment=environment)
        if ended.code:
            died.append(case.__name__)
            return ended.why()
        return next(line.removeprefix(MEASURED) for line in ended.lines if line.startswith(MEASURED))

    model = write_tiny_gguf(folder / "tiny.gguf")
    yield f"a cache larger than the device: {outcome(too_large, model)}"
    limited = "not run (only Vulkan's can be limited)"
    if any(name.startswith("Vulkan") for name in names):
        shape = read_shape(model)
        lane_bytes = padded(shape.trained_context + LANE_SLACK) * shape.cell_bytes
        limited = outcome(served, model, {LIMIT: str(SLOTS * lane_bytes * 3 // 4)})
    yield f"memory for the lanes of some requests alone: {limited}"
    heavy = "not run (Metal computes with the mapped file)"
    if not any(name.startswith(("MTL", "Metal")) for name in names):
        heavy = outcome(too_heavy, str(folder / "heavy.gguf"))
    yield f"weights larger than the device: {heavy}"
    if died:
        raise CaseDied(", ".join(died))


def too_heavy(model: str) -> str:
    found = devices()
    room = sum(device.total for device in found)
    write_heavy_gguf(Path(model), room + MORE)
    if all(SOFTWARE in device.description for device in found):
        limit = mapped_bytes() + Path(model).stat().st_size + room  # llama.cpp maps the file first
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        Model(model)
    except ModelLoadError as error:
        return f"refused: {error.message.replace(model, 'MODEL')}"
    return "taken, although the device has no room for them"


def mapped_bytes() -> int:
    """Of this process, on Linux."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


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
    print(f"{MEASURED}{cases[sys.argv[1]](sys.argv[2])}")
