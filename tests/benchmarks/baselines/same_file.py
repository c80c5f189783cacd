"""Our engine beside `llama-server` with as many slots, given the same file: runs that take turns.

Every run starts anew, so that no prompts are kept from the one before, and nothing else runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from engine import EngineConfig
from engine.base.config import AS_SHIPPED, AUTO, BF16
from engine.host.measurement_cache import cache_path, identity
from engine.llama.model import read_shape
from engine.weights.format_selection import open_model, selected_format, unpacked
from engine.weights.quantise import requantise
from tests.benchmarks.baselines import llama_server, step_profile
from tests.benchmarks.baselines.step_profile import Profile
from tests.benchmarks.common import SLOTS, Throughput, ToolFailed
from tests.support.measuring.report import Report, spread

FORMATS = (BF16, "q8_0", "q4_0", AS_SHIPPED)  # of the files that both get
THEIRS, OURS = "llama-server", "medusaq"


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that are sent at once, each answered with so many tokens."""

    name: str
    prompts: Sequence[str]
    max_tokens: int


Run = tuple[Throughput, Profile]
System = Callable[[Load], Run]


def measure(server: Path, model: Path, loads: Sequence[tuple[str, Load]], pairs: int, report: Report) -> None:
    """Two tables: tokens/s of each system and its ratio to llama-server's, and where our time goes.

    loads: each with the format of the file, one of FORMATS. Raises ToolFailed or EngineError.
    """
    columns = ("file", "requests", "system", "tokens/s", "ratio", "prompt tokens computed", "thin end")
    profiles = {}
    with report.table("server", *columns) as table:
        for format, load in loads:
            runs = _runs(_systems(server, _file(model, format)), load, pairs)
            theirs = [throughput for throughput, _ in runs[THEIRS]]
            for name, of_system in runs.items():
                table.row(format, load.name, name, *_cells([one for one, _ in of_system], theirs))
            profiles[format, load.name] = sum((profile for _, profile in runs[OURS]), start=Profile())
        for load in {load.name: load for _, load in loads}.values():
            table.note(f"{load.name.capitalize()}: {len(load.prompts)}, {load.max_tokens} tokens each.")
    with report.table("server-steps", "file", "requests", *step_profile.COLUMNS) as table:
        for (format, name), profile in profiles.items():
            for row in profile.rows():
                table.row(format, name, *row)


def _runs(systems: Mapping[str, System], load: Load, pairs: int) -> dict[str, list[Run]]:
    """Which take turns at being first."""
    runs: dict[str, list[Run]] = {name: [] for name in systems}
    for pair in range(pairs):
        for name in list(systems)[:: 1 if pair % 2 == 0 else -1]:
            run = systems[name](load)
            _check(name, run[0], load)
            runs[name].append(run)
            print(run[0].line(name), flush=True)
    return runs


def _systems(server: Path, file: Path) -> dict[str, System]:
    """llama-server, our engine with drafts and without, and the engine where it unpacks these weights."""

    def theirs(load: Load) -> Run:
        prompts = list(load.prompts)
        return llama_server.measure(server, file, prompts, load.max_tokens, SLOTS, ignore_eos=True), Profile()

    def ours(config: EngineConfig, load: Load) -> Run:
        return step_profile.measure(config, load.prompts, load.max_tokens)

    config = EngineConfig(model=str(file), slots=SLOTS, weights=AS_SHIPPED)
    systems: dict[str, System] = {
        THEIRS: theirs,
        OURS: partial(ours, config),
        f"{OURS}, no drafts": partial(ours, replace(config, speculation=False)),
    }
    auto = replace(config, weights=AUTO)
    open_model(auto)  # measures the formats, once
    if selected_format(auto, str(file), read_shape(str(file))) == BF16:
        systems[f"{OURS}, unpacked"] = partial(ours, auto)
    return systems


def _file(model: Path, format: str) -> Path:
    """The model in this format, kept beside other weights of the cache folder."""
    if format == AS_SHIPPED:
        return model
    if format == BF16:
        return Path(unpacked(str(model)))
    made = cache_path("weights", f"{identity(str(model))} {format}", ".gguf")
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        requantise(str(model), str(made), format)
    return made


def _check(name: str, run: Throughput, load: Load) -> None:
    asked = len(load.prompts) * load.max_tokens
    if run.generated_tokens != asked:
        raise ToolFailed(f"{name} wrote {run.generated_tokens} tokens where {asked} were asked for")


def _cells(runs: Sequence[Throughput], theirs: Sequence[Throughput]) -> tuple[str, ...]:
    """Tokens/s, their ratio, prompt tokens that were computed, and seconds of the thin end."""
    ratios = [own.tokens_per_s / other.tokens_per_s for own, other in zip(runs, theirs, strict=True)]
    computed = median(run.prompt_tokens - run.cached_tokens for run in runs)
    return (
        spread([run.tokens_per_s for run in runs]),
        spread(ratios, 2),
        f"{computed:,.0f} of {runs[0].prompt_tokens:,}",
        f"{median(run.thin_s for run in runs):.1f} of {median(run.wall_s for run in runs):.1f} s",
    )
