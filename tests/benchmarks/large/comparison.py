"""Drafts where a model is large: ways of decoding side by side, over a small model and widened ones.

    python -m tests.benchmarks --only widened --made FOLDER [--shapes 3B] [--server PATH/llama-server]

widened.py says what these are. Every way has an engine of its own over the same weights, and steps are taken
in turns. From block to block the engines change parts. What a way learns is not told to another.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cli.reports.comparison_report import SOURCES
from engine import Decoding, EngineConfig
from engine.base.config import AS_SHIPPED
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.llama.model import Model, read_shape
from engine.speculative.controller import Speculation
from engine.speculative.setup import shipped_heads, speculate
from engine.tools.decode_benchmark import ALL, SEED, Mode, Pair, Pairs, Pass, Prompt, run_in_turns
from engine.weights.formats import FORMATS
from tests.benchmarks.baselines.speculation import SPECS
from tests.benchmarks.common import (
    WARM_UP_PROMPT,
    WARM_UP_TOKENS,
    ToolFailed,
    context_needed,
    folder,
    load_spec_bench,
    positive,
)
from tests.benchmarks.large.shapes import PRESETS, name_of, parse_shape
from tests.benchmarks.large.their_drafts import Server, servers
from tests.benchmarks.large.widened import ABOUT, CannotWiden, made
from tests.benchmarks.large.widened_heads import widen_heads
from tests.support.measuring.report import Report, Rows, spread

PLAIN, MEDUSA, BOTH = "plain", "medusa", "auto, both"
FEW_ROWS = 16  # up to which T(n) is printed
AS_IT_IS = "as-is"  # the model that is widened
SHAPES = [AS_IT_IS, "1B", "3B"]
FILE_FORMATS = ["q8_0", "q4_k_m"]
REQUESTS = [1, 2, 4]
PROMPTS = 16  # without --limit


Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """uses: whether a draft source is asked where decoding is "auto"."""

    decoding: Decoding
    uses: Callable[[DraftSource], bool]


WAYS = {
    MEDUSA: Way(Decoding.MEDUSA, lambda _: True),
    "auto, heads": Way(Decoding.AUTO, lambda source: source.needs_hidden),
    "auto, lookup": Way(Decoding.AUTO, lambda source: not source.needs_hidden),
    BOTH: Way(Decoding.AUTO, lambda _: True),
}


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured over one file. server: a llama-server to run beside it, with the drafts of `spec`."""

    model: Path
    heads: Path
    prompts: Sequence[str]
    max_tokens: int
    server: Path | None = None
    spec: str = ""

    @property
    def cells(self) -> int:
        """Of a request."""
        return context_needed(self.model, list(self.prompts), self.max_tokens)


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of `widened`")
    names = ", ".join(PRESETS)
    group.add_argument(
        "--shapes",
        nargs="+",
        type=_checked,
        default=SHAPES,
        metavar="SHAPE",
        help=f"{AS_IT_IS}, {names}, or WIDTHxHEADSxFEED_FORWARDxLAYERS (default: {' '.join(SHAPES)})",
    )
    group.add_argument("--large-formats", nargs="+", choices=list(FORMATS), default=FILE_FORMATS)
    group.add_argument(
        "--requests", nargs="+", type=positive, default=REQUESTS, help="at once (default: 1 2 4)"
    )
    group.add_argument("--made", type=folder, help="a folder to keep the files in that are made")
    group.add_argument("--heads", type=Path, help="of --model, and for `on-paper` (default: packaged ones)")
    group.add_argument("--spec", choices=list(SPECS), default=next(iter(SPECS)), help="drafts of --server")


def _checked(shape: str) -> str:
    """For argparse: names, which tables are named after, stay names."""
    return shape if shape == AS_IT_IS else name_of(parse_shape(shape))


def run(options: argparse.Namespace, report: Report) -> None:
    """One table for each shape. Raises ToolFailed or EngineError."""
    heads = options.heads or shipped_heads(str(options.model))
    if heads is None:
        raise ToolFailed(f"no heads for {options.model} are packaged: give --heads FILE")
    prompts = load_spec_bench(options.prompts, options.limit or PROMPTS)

    def case(model: Path, heads: Path) -> Case:
        return Case(model, heads, prompts, options.max_tokens, options.server, options.spec)

    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as passing:
        for shape in options.shapes:
            with report.table(f"widened-{shape.lower()}", "format", *COLUMNS) as table:
                if shape == AS_IT_IS:
                    format = options.model.stem.rpartition(".")[2].lower()
                    _add(table, format, case(options.model, heads), options.requests)
                    continue
                for format in options.large_formats:
                    files = _files(options.model, heads, options.made or Path(passing), shape, format)
                    _add(table, format, case(*files), options.requests)


def _files(small: Path, heads: Path, place: Path, shape: str, format: str) -> tuple[Path, Path]:
    """The widened model and its heads. Raises ToolFailed or EngineError."""
    try:
        model = made(small, place, parse_shape(shape), format)
    except CannotWiden as error:
        raise ToolFailed(str(error)) from error
    wide_heads = place / f"{model.stem}-heads.safetensors"
    widen_heads(heads, wide_heads, model)
    print(ABOUT.format(small=small.stem, size=f"{read_shape(str(model)).parameters / 1e9:.2f}B"), flush=True)
    return model, wide_heads


def _add(table: Rows, format: str, case: Case, requests: Sequence[int]) -> None:
    for row in measure(case, requests, partial(_note, table, format, case.model)):
        table.row(format, *row)


def _note(table: Rows, format: str, model: Path, times: str) -> None:
    table.note(f"{format}, {model.stat().st_size / 1e9:.2f} GB: {times}.")


def measure(case: Case, requests: Sequence[int], on_times: Callable[[str], None]) -> Iterator[Row]:
    """Rows of COLUMNS, as they are measured; on_times is told T(n). Raises ToolFailed or EngineError."""
    with _engines(case, max(requests)) as (engines, modes):
        on_times(_times(modes[BOTH]))
        run_in_turns(engines, list(modes.values()), [WARM_UP_PROMPT], 1, WARM_UP_TOKENS)
        for many in requests:
            with _theirs(case, many) as their_servers:
                found = _measure(case, many, engines, modes, their_servers)
            for name, pairs in found.items():
                yield _row(name, pairs)


@contextmanager
def _engines(case: Case, slots: int) -> Iterator[tuple[list[Engine], dict[str, Mode]]]:
    """As many engines as modes."""
    config = EngineConfig(
        model=str(case.model),
        heads=str(case.heads),
        weights=AS_SHIPPED,
        slots=slots,
        kv_cells=case.cells * slots,
        prefix_sharing=False,
    )
    model = Model(str(case.model))
    engines, modes = [Engine(config, model)], {PLAIN: Mode()}
    try:
        for name, way in WAYS.items():
            engines.append(Engine(config, model))
            modes[name] = _mode(engines[-1], config, way)
        yield engines, modes
    finally:
        for engine in engines:
            engine.close()
            engine.layouts.close()


def _mode(engine: Engine, config: EngineConfig, way: Way) -> Mode:
    """With sources of its own. Raises ToolFailed without heads."""
    speculate(engine, config)
    names, speculation = engine.info.draft_sources, engine.draft_source
    assert isinstance(speculation, Speculation), "it combines the others"
    if not any(source.needs_hidden for source in speculation.sources):
        raise ToolFailed(f"no heads in {config.heads}")
    if way.decoding is Decoding.MEDUSA:
        return Mode(speculation, names, way.decoding)
    sources = [source for source in speculation.sources if way.uses(source)]
    return Mode(Speculation(speculation.profile, sources), names, way.decoding)


def _theirs(case: Case, requests: int) -> AbstractContextManager[Mapping[str, Server]]:
    if case.server is None:
        return nullcontext({})
    return servers(case.server, case.model, requests, case.cells, case.spec)


def _measure(
    case: Case,
    requests: int,
    engines: Sequence[Engine],
    modes: Mapping[str, Mode],
    their_servers: Mapping[str, Server],
) -> dict[str, Pairs]:
    """By way: its passes beside plain ones, those of llama-server beside its own plain ones.

    Each prompt runs once: llama-server keeps some n-grams, and would know an answer's second run.
    """
    found: dict[str, Pairs] = {}
    shuffled = random.Random(SEED).sample(case.prompts, len(case.prompts))
    turns = [shuffled[at : at + requests] for at in range(0, len(shuffled), requests)]
    console = Console(stderr=True)
    for number, texts in enumerate(track(turns, f"{requests} at once", console=console)):
        ours = _in_turns(engines, modes, number, texts, requests, case.max_tokens)
        order = list(their_servers)[:: 1 if number % 2 else -1]
        theirs = {name: their_servers[name].measure(texts, case.max_tokens) for name in order}
        for passes in (ours, {name: theirs[name] for name in their_servers}):
            # Answered by a single token: nothing was decoded.
            if passes and all(one.tokens for one in passes.values()):
                plain = next(iter(passes.values()))
                for name, one in passes.items():
                    pairs = found.setdefault(name, Pairs(requests, ALL))
                    pairs.add([Prompt(ALL, text) for text in texts], Pair(plain, one, number % len(engines)))
    return found


def _in_turns(
    engines: Sequence[Engine],
    modes: Mapping[str, Mode],
    turn: int,
    prompts: Sequence[str],
    requests: int,
    max_tokens: int,
) -> dict[str, Pass]:
    """turn: by which the engines change parts."""
    names = [list(modes)[(place + turn) % len(modes)] for place in range(len(modes))]
    passes = run_in_turns(engines, [modes[name] for name in names], prompts, requests, max_tokens)
    by_name = dict(zip(names, passes, strict=True))
    return {name: by_name[name] for name in modes}


def _times(mode: Mode) -> str:
    assert isinstance(mode.source, Speculation), "the mode of all sources"
    points = mode.source.profile.points  # of a slow model few: the others are extrapolated
    ratios = ", ".join(
        f"{rows} {seconds / points[1]:.2f}" for rows, seconds in points.items() if 1 < rows <= FEW_ROWS
    )
    return f"T(1) {points[1] * 1e3:.1f} ms; T(n)/T(1) of n measured rows: {ratios}"


COLUMNS = (
    *("at once", "decoding", "tokens/s", "ratio to plain", "at least", "tokens a step", "pairs"),
    "accepted of verified draft tokens",
)


def _row(name: str, pairs: Pairs) -> Row:
    found = pairs.row()
    ratios = [
        pair.auto.tokens / pair.auto.seconds * pair.plain.seconds / pair.plain.tokens for pair in pairs.pairs
    ]
    verified, accepted = Counter[str](), Counter[str]()
    for pair in pairs.pairs:
        verified += pair.auto.verified_of
        accepted += pair.auto.accepted_of
    sources = (
        f"{SOURCES.get(source, source)} {accepted[source]} of {count} ({accepted[source] / count:.2f})"
        for source, count in sorted(verified.items())
    )
    return (
        str(pairs.requests),
        name,
        f"{found.tokens_per_s:.1f}",
        spread(ratios, 2),
        f"{found.ratio_low:.2f}",
        f"{found.tokens_per_step:.2f}",
        str(len(pairs.pairs)),
        ", ".join(sources) or "-",
    )
