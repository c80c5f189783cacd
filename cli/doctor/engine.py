"""Checks of what the model worker needs: a working llama.cpp build, the model, the heads, memory."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.doctor.findings import Finding, Grade, fail, ok, warn
from common.llama_build import KERNELS_VARIABLE, BuildDies, has_decoded, rebuild, signal_name, try_build
from common.processor import flags, usable_cores
from common.units import size
from tasks.base.settings import Settings

if TYPE_CHECKING:
    from engine import EngineConfig
    from engine.host.system_memory import Memory
    from engine.llama.model import Shape

ASK_BUILD = """
import json
from engine.llama.devices import devices, idle_backends
from engine.llama.model import build
print(json.dumps([build(), [*map(str, devices())], idle_backends()]))
"""
KERNEL_GAIN, KERNEL_BUILD = "engine.tools.kernel_gain", "engine.kernels"
NO_KERNELS_HERE = ("there are none for", "has no AVX2")
KERNELS_NEED_ANOTHER_BUILD = ("plain buffers", "without OpenMP", "they are for ggml")
CUDA_DRIVER = "libcuda.so"
BUILD_TIMEOUT_S = 60
DRIVER = "install the GPU's driver, or a newer one; MEDUSAQ_GPU_LAYERS=0 computes on the processor alone"
# CPU features that matter for speed: name in llama.cpp's build info -> flag in /proc/cpuinfo.
FEATURES = {
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
}


def installed() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


def decoding(settings: Settings) -> Iterator[Finding]:
    """Decode in a separate process, as a worker does before it serves."""
    try:
        found = try_build(dict(settings))
    except BuildDies as error:
        yield fail("decoding", str(error), rebuild())
        return
    if found.fault:
        yield warn("decoding", found.fault, rebuild())
    elif not has_decoded(dict(settings)):
        why = "the model could not be tried: it does not load, or its process was ended from outside"
        yield warn("decoding", why, "start a worker, whose log says more")
    else:
        yield ok("decoding", "llama.cpp as built decodes on this processor")


def build(gpu_layers: int) -> Iterator[Finding]:
    """Load llama.cpp in a separate process, since a build for another processor crashes it."""
    asked = [sys.executable, "-P", "-c", ASK_BUILD]
    try:
        ended = subprocess.run(asked, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        yield fail("llama.cpp", f"does not load within {BUILD_TIMEOUT_S} s", rebuild())
        return
    if ended.returncode < 0:
        yield fail("llama.cpp", f"ends with {signal_name(-ended.returncode)} when it is loaded", rebuild())
    elif ended.returncode:
        line = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        yield fail("llama.cpp", f"cannot be loaded: {line}", DRIVER if CUDA_DRIVER in line else rebuild())
    else:
        built, gpus, idle = json.loads(ended.stdout)
        yield compared(built, flags())
        yield from (ok("gpu", gpu) for gpu in gpus)
        if gpu_layers and idle:
            yield warn("gpu", f"llama.cpp finds none for {', '.join(idle)}: the processor computes", DRIVER)


def kernels() -> Iterator[Finding]:
    """Which of ours compute, and what they gain, measured once in a process of its own."""
    asked = [sys.executable, "-P", "-m", KERNEL_GAIN]
    try:
        ended = subprocess.run(asked, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        yield warn("kernels", f"are not measured within {BUILD_TIMEOUT_S} s", "try again on a quiet machine")
        return
    line = (ended.stdout.strip() or ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
    if ended.returncode:
        what = f"llama.cpp computes with its own, which are slower: {line}"
        yield warn("kernels", what, mend) if (mend := _mend_kernels(line)) else ok("kernels", what)
    else:
        yield ok("kernels", line)


def _mend_kernels(why: str) -> str:
    """What gives kernels in the place of this reason; empty where nothing does."""
    if any(said in why for said in NO_KERNELS_HERE):
        return ""
    if KERNELS_VARIABLE in why:
        return f"unset {KERNELS_VARIABLE}"
    if any(said in why for said in KERNELS_NEED_ANOTHER_BUILD):
        return rebuild()
    return f"install a C++ compiler, then: {sys.executable} -m {KERNEL_BUILD}"


def compared(built: str, processor: Set[str]) -> Finding:
    """Compare the build info with the processor's flags, which are empty if unknown."""
    used = set(re.findall(r"(\w+) = 1", built))
    version = built.split(maxsplit=1)[0]
    has = {name for name, flag in FEATURES.items() if flag in processor}
    if unused := sorted(has - used) if processor else []:
        what = f"{version} was built without {', '.join(unused)}, which this processor supports: it is slower"
        return warn("llama.cpp", what, rebuild())
    shown = ", ".join(name for name in FEATURES if name in used) or "no vector instructions"
    return ok("llama.cpp", f"{version}, built for {shown}")


def model(settings: Settings) -> Iterator[Finding]:
    """The file, the heads for it, and whether both fit in memory."""
    from engine import ModelLoadError
    from engine.base.config import AUTO, FOR_THIS_MACHINE
    from engine.host.system_memory import look_at_memory
    from engine.llama.model import default_model_path, read_shape
    from engine.tools.memory_estimate import needed
    from engine.tools.model_registry import Register
    from tasks.worker.engine_loader import engine_config

    try:
        chosen = Register().resolve(settings.model)
        path = chosen.path or default_model_path()
        shape = read_shape(path)
    except ModelLoadError as error:
        mend = "set MEDUSAQ_MODEL to a GGUF that is whole, or unset it for the packaged model"
        yield fail("model", error.message, mend)
        return
    weights = Path(path).stat().st_size
    yield ok("model", f"{Path(path).name}, {shape.architecture}, {size(weights)}")
    yield context(settings.kv_cells, settings.slots, shape.trained_context)
    yield from _heads(settings, chosen.heads, path, shape.width, shape.vocab_size)
    if settings.weights == FOR_THIS_MACHINE:
        found = _weights(path)
        yield found
        if found.grade is Grade.FAIL:
            return  # the memory estimate depends on the format
    config = replace(engine_config(settings, chosen), model=path)
    if settings.weights == AUTO:
        yield _selected(config, path, shape)
    memory = look_at_memory()
    if settings.slots > 1 and not shape.state_bytes:
        yield lanes(config, shape, memory.whole)
    yield fits(needed(config, memory.whole).total, memory)


def _weights(path: str) -> Finding:
    """The number format that is saved for a model on this machine."""
    from engine.weights.saved_format import find_format

    choice = find_format(path)
    if choice is None:
        what = f"MEDUSAQ_WEIGHTS=for_this_machine, and nothing was measured yet for {path} on this machine"
        mend = f"medusaq compile {path} --for-this-machine; until then a worker does not start"
        return fail("weights", what, mend)
    return ok("weights", f"computed as {choice.type}, chosen for this machine: {choice.reason}")


def _selected(config: EngineConfig, path: str, shape: Shape) -> Finding:
    """The number format that the engine selects."""
    from engine.base.config import BF16
    from engine.weights.format_selection import selected_format

    selected = selected_format(config, path, shape)
    if selected is None:
        what = "computed as in the file until a worker has measured, while idle, whether BF16 is faster"
    elif selected == BF16:
        what = "computed in BF16, which is faster on this machine"
    else:
        what = "computed as in the file"
    return ok("weights", what)


def _heads(
    settings: Settings, named: str | None, path: str, width: int, vocab_size: int
) -> Iterator[Finding]:
    """Load the heads. named: those registered with the model."""
    from engine import HeadsLoadError
    from engine.medusa.loader import load_heads
    from engine.medusa.model_rows import ModelRows
    from engine.speculative.setup import shipped_heads

    if not settings.speculation:
        yield ok("heads", "not asked for: MEDUSAQ_SPECULATION is off")
        return
    try:
        heads = settings.heads or named or shipped_heads(path)
        if heads is None:
            yield ok("heads", "none for this model: drafts come from prompt lookup")
            return
        loaded = load_heads(
            str(heads),
            width=width,
            vocab_size=vocab_size,
            model_rows=ModelRows(path),
            threads=settings.threads or usable_cores(),
        )
    except HeadsLoadError as error:
        if settings.heads is None and named is None:
            mend = "pip install 'medusaq[medusa]'; until then drafts come from prompt lookup"
            yield warn("heads", error.message, mend)
        else:
            mend = "set MEDUSAQ_HEADS to heads for this model, or unset it"
            yield fail("heads", error.message, mend)
        return
    yield ok("heads", f"{Path(heads).name}, {loaded.heads} of them, run by ONNX Runtime ({loaded.provider})")


def context(kv_cells: int, slots: int, trained: int) -> Finding:
    """How long a request may be. trained: tokens that the model was trained for."""
    what = f"requests of up to {min(kv_cells, trained)} tokens, prompt and answer together"
    if kv_cells > trained * slots:
        what += f"; {slots} slots cannot fill {kv_cells} KV cells"
        return warn("context", what, f"{trained * slots} are enough for MEDUSAQ_KV_CELLS")
    if kv_cells < trained:
        what += f"; the model was trained for {trained}, which as many MEDUSAQ_KV_CELLS would allow"
    return ok("context", what)


def lanes(config: EngineConfig, shape: Shape, whole: int) -> Finding:
    """How many tokens a request has room for apart from the others.

    whole: bytes of memory, that of a GPU not included.
    """
    from engine.core.layout_setup import cell_bytes, lane_cells, memory_for_lanes
    from engine.core.layouts import LANE_SLACK

    cells = lane_cells(config, shape, memory_for_lanes(config, shape, whole, loaded=False))
    wanted = lane_cells(config, shape, None)
    most = f"{config.slots} lanes of {wanted - LANE_SLACK} tokens"
    if not cells:
        what = f"too little memory for {most}: all requests share one cache, and slow each other"
        return warn("lanes", what, "take a smaller model or fewer MEDUSAQ_SLOTS")
    more = size(cells * config.slots * cell_bytes(config, shape))
    what = f"{config.slots} of {cells - LANE_SLACK} tokens; twice as long ones would take {more} more"
    if cells < wanted:
        return warn("lanes", f"{what}; with more memory: {most}", "set fewer MEDUSAQ_SLOTS")
    return ok("lanes", what)


def fits(needed: int, memory: Memory) -> Finding:
    """Compare the needed bytes with those available now and with the whole memory."""
    whole, available = memory.whole, memory.available
    what = f"the worker needs about {size(needed)}; of {size(whole)} are {size(available)} free"
    mend = "a smaller model, or fewer MEDUSAQ_KV_CELLS"
    if needed > whole:
        return fail("memory", what, mend)
    if needed > available:
        return warn("memory", what, f"end other programs (a running worker counts too), take {mend}")
    return ok("memory", what)
