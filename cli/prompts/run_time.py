"""How long a run would take here: from the times of single calls, and from what earlier runs took.

A run that ends tells by which factor it took longer than its calls, and how long the answers to its kind of
request are. Kept in the cache of measurements, for each model and its settings on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cli.prompts.prompt_reader import ReadOptions
from tasks.base.settings import get_settings

if TYPE_CHECKING:
    from engine.base.config import EngineConfig
    from engine.weights.format_selection import Timing

CACHE_KIND = "run_times"
MOST_KINDS = 64  # of requests that are remembered, those run last
OVERHEAD_S = 0.5  # of any run: its file is read, its end is noticed, its results are fetched
STEADY_S = 10.0  # of calls, for which a run counts as much as all before it
LEAST_S = 1.0  # of calls: shorter runs say nothing of speed
UNKNOWN = (1.0, 3.0)  # factor before any run: never less than the calls; sampling and other work come on top
KNOWN = 1.3  # how far runs differ from each other
LEAST_SHARE = 0.25  # of max_tokens: how long answers may be that nobody has seen


@dataclass(frozen=True, slots=True)
class Work:
    """prompt_tokens: those that are computed, not taken from the prefix cache."""

    requests: int
    prompt_tokens: float
    answer_tokens: float


@dataclass(frozen=True, slots=True)
class Seen:
    """The last run of a kind. answer: tokens of one; cached: the share of prompt tokens not computed."""

    requests: int
    answer: float
    cached: float


def call_seconds(work: Work, timing: Timing) -> float:
    """Of all decode calls, with the thin end: the last requests share their calls with few others."""
    slots = timing.slots
    full, rest = divmod(work.requests, slots)
    each = work.answer_tokens / max(1, work.requests)

    def call(rows: int) -> float:
        return timing.alone + (timing.together - timing.alone) * (rows - 1) / max(1, slots - 1)

    calls = full * call(slots) + (call(rest) if rest else 0.0)
    return work.prompt_tokens * timing.prompt_token + each * calls


def kind_of(options: ReadOptions) -> str:
    """Names what decides how long the answers are: all that is asked for but the rows."""
    fields = {**asdict(options), "form": "", "id_column": None, "limit": None}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:16]


class RunTimes:
    """Of the model that a local stack would run with this config. Raises ModelLoadError."""

    def __init__(self, config: EngineConfig) -> None:
        from engine.host.measurement_cache import read_entry
        from engine.weights.format_selection import known_speed, speed_key

        self._key = speed_key(config)
        self._timing = known_speed(config)
        self._factor, self._kinds = _loaded(read_entry(CACHE_KIND, self._key))

    def note(self, kind: str, work: Work, cached_tokens: int, seconds: float) -> None:
        """A run took so long. cached_tokens: of its prompts, beside those of the work."""
        from engine.host.measurement_cache import write_entry

        if self._timing is not None:
            calls = call_seconds(work, self._timing)
            seen = max(0.1, (seconds - OVERHEAD_S) / calls)
            if calls >= LEAST_S:
                before = seen if self._factor is None else self._factor
                weight = calls / (calls + STEADY_S) if self._factor is not None else 1.0
                self._factor = math.exp((1 - weight) * math.log(before) + weight * math.log(seen))
        self._kinds.pop(kind, None)
        prompts = work.prompt_tokens + cached_tokens
        cached = cached_tokens / prompts if prompts else 0.0
        self._kinds[kind] = Seen(work.requests, work.answer_tokens / work.requests, cached)
        newest = {name: asdict(seen) for name, seen in [*self._kinds.items()][-MOST_KINDS:]}
        write_entry(CACHE_KIND, self._key, {"factor": self._factor, "kinds": newest})

    def estimate(self, kind: str, requests: int, prompt_tokens: int, most: int) -> Estimate | None:
        """most: tokens of all answers, if each is as long as it may be. None: no call was measured here."""
        if self._timing is None:
            return None
        seen = self._kinds.get(kind)
        lower, upper = (self._factor / KNOWN, self._factor * KNOWN) if self._factor else UNKNOWN
        work = Work(requests, prompt_tokens, most)
        if seen is None:
            least = replace(work, answer_tokens=LEAST_SHARE * most)
        else:
            computed = prompt_tokens * (1 - seen.cached)
            least = work = Work(requests, computed, min(most, seen.answer * requests))
        return Estimate(
            OVERHEAD_S + lower * call_seconds(least, self._timing),
            OVERHEAD_S + upper * call_seconds(work, self._timing),
            0 if seen is None else seen.requests,
        )


def _loaded(kept: Any) -> tuple[float | None, dict[str, Seen]]:
    """Nothing of an entry that is absent or damaged."""
    try:
        factor = None if kept["factor"] is None else float(kept["factor"])
        kinds = {
            name: Seen(int(seen["requests"]), float(seen["answer"]), float(seen["cached"]))
            for name, seen in kept["kinds"].items()
        }
    except (TypeError, ValueError, KeyError, AttributeError):
        return None, {}
    return factor, kinds


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds from the first request to the last answer. answers: of earlier requests of this kind."""

    least: float
    most: float
    answers: int

    def text(self) -> str:
        """As in "about 40 to 70 s, beside starting"."""
        said = f"about {_span(self.least, self.most)}, beside starting"
        if self.answers:
            return (
                f"{said}, if answers are as long as the {self.answers:,} of the last run with these options"
            )
        return f"{said}; a run of some rows, as with --limit 10, tells how long the answers are"


def _span(least: float, most: float) -> str:
    from cli.views.progress import duration

    if most < 10:
        return f"{least:.1f} to {most:.1f} s"
    if most < 100:
        return f"{least:.0f} to {most:.0f} s"
    return f"{duration(least)} to {duration(most)}"


def note_run(model: str | None, kind: str, work: Work, cached_tokens: int, seconds: float) -> None:
    """Of a run on a local stack with this model, which is done whatever becomes of the note."""
    try:
        from engine import EngineError
    except ImportError:
        return
    if get_settings().engine_factory.startswith("engine:"):  # else the model is not what took the time
        with contextlib.suppress(EngineError):
            RunTimes(local_config(model)).note(kind, work, cached_tokens, seconds)


def local_config(model: str | None) -> EngineConfig:
    """Of the engine that a local stack would run. Raises ModelLoadError; ImportError without the engine."""
    from engine.llama.model import default_model_path
    from engine.tools.model_registry import Register
    from tasks.worker.engine_loader import engine_config

    settings = get_settings()
    chosen = Register().resolve(model or settings.model)
    return replace(engine_config(settings, chosen), model=chosen.path or default_model_path())
