"""Measures the speed of a GGUF on this machine: one round, in its own process.

    python -m compiling.measure.speed FILE [--threads N]

prints JSON lines, the last of which holds the result.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compiling.measure import child
from compiling.measure.bulk_prompts import OUTPUT, PROMPTS
from compiling.measure.texts import PASSAGES
from engine import Completion, EngineConfig, Request, SamplingParams
from engine.base.config import AS_SHIPPED
from engine.core.engine import Engine
from engine.llama.model import Model
from engine.speculative.row_timer import largest_timed, row_timer

SLOTS = 16  # requests decoded together
ROWS = (1, 2, 3, 4, 6, 8, 16)  # the n for which T(n) is measured
LEAST_ROUNDS, MOST_ROUNDS = 3, 12  # repetitions over all ROWS
ROUNDS_S = 2.0  # time limit for rounds beyond LEAST_ROUNDS
PREFILL = 256  # tokens of the prompt that is timed
KIB = 1024


@dataclass(frozen=True, slots=True)
class Speed:
    """load_s: to load the model and create the engine. row_s: seconds of a decode call by its rows, T(n).

    prefill_per_s: prompt tokens per second of one prompt. bulk_per_s: generated tokens per second of
    wall-clock time while SLOTS requests run, with the time of their prompts. peak_bytes: peak memory of the
    process.
    """

    load_s: float
    row_s: dict[int, float]
    prefill_per_s: float
    bulk_per_s: float
    peak_bytes: int

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, content: dict[str, Any]) -> Speed:
        """Parse the output of json(), in which JSON has made the keys of row_s strings."""
        rows = {int(n): seconds for n, seconds in content["row_s"].items()}
        return cls(**{**content, "row_s": rows})

    @property
    def alone_per_s(self) -> float:
        """Tokens per second of a single stream."""
        return 1 / self.row_s[1]


def measure(path: str, threads: int, note: child.Note) -> Speed:
    """Measure one round. Raises EngineError."""
    began = time.perf_counter()
    model = Model(path)
    loaded = time.perf_counter() - began
    lengths = [len(model.tokenize(prompt, add_bos=True, special=False)) for prompt in PROMPTS]
    config = EngineConfig(
        model=path,
        weights=AS_SHIPPED,
        slots=SLOTS,
        kv_cells=sum(lengths) + len(lengths) * (OUTPUT + 1) + PREFILL,
        threads=threads,
        prefix_sharing=False,
        speculation=False,  # it would make the result depend on the drafts
    )
    began = time.perf_counter()
    engine = Engine(config, model)
    loaded += time.perf_counter() - began
    run(engine, ["Say hello."], 8)
    note(0.1)
    rows = row_seconds(model, config)
    note(0.4)
    prefill = _prefill(engine)
    note(0.5)
    began = time.perf_counter()
    ended = run(engine, PROMPTS, OUTPUT, lambda share: note(0.5 + share / 2))
    bulk = sum(one.completion_tokens for one in ended) / (time.perf_counter() - began)
    return Speed(loaded, rows, prefill, bulk, peak_bytes())


def run(
    engine: Engine, prompts: Sequence[str], max_tokens: int, note: child.Note = lambda _: None
) -> list[Completion]:
    """Complete the raw prompts, each with exactly max_tokens tokens. Raises EngineError."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        request = Request(id=str(i), prompt=prompt, sampling=sampling, raw=True)
        engine.add(engine.prepare(request, time.monotonic()))
    ended: list[Completion] = []
    emitted = 0
    while not engine.idle:
        report = engine.step()
        emitted += report.emitted
        note(emitted / (len(prompts) * max_tokens))
        for one in report.ended:
            if isinstance(one.outcome, Exception):
                raise one.outcome
            ended.append(one.outcome)
    return ended


def row_seconds(model: Model, config: EngineConfig, rows: Sequence[int] = ROWS) -> dict[int, float]:
    """T(n): the median of several rounds over all n. The first call with a new n is slower, and not used."""
    times: dict[int, list[float]] = {n: [] for n in rows if n <= largest_timed(config)}
    with row_timer(model, config) as timer:
        began, rounds = time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - began < ROUNDS_S):
            for n, found in times.items():
                timer.decode(n)
                found.append(timer.decode(n))
            rounds += 1
    return {n: statistics.median(found) for n, found in times.items()}


def _prefill(engine: Engine) -> float:
    model = engine.model
    tokens = model.tokenize(PASSAGES, add_bos=False, special=False)[:PREFILL]
    text = b"".join(model.piece(token) for token in tokens.tolist()).decode(errors="ignore")
    began = time.perf_counter()
    [ended] = run(engine, [text], 1)
    return ended.prompt_tokens / (time.perf_counter() - began)


def peak_bytes() -> int:
    """Peak resident memory of this process, including the pages of the mapped file that were read."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * KIB
    # Not on Linux, where this value starts at the peak of the parent process.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB


def main() -> None:
    options = child.parser(__doc__).parse_args()
    child.answer(lambda note: measure(options.file, options.threads, note).json(), options.follow)


if __name__ == "__main__":
    main()
