"""`medusaq bench`: measures the speed-up of speculative decoding on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import cli.prompts
from cli.base.errors import BadInput, CliError, ModelNotLoadable
from cli.base.installing import to_install
from cli.base.output_files import check_writable, write
from cli.base.plain_help import App
from common.unicode import is_unicode

if TYPE_CHECKING:
    from engine.tools.decode_benchmark import Pairs, Prompt

bench = App(help="Measure this machine.", rich_markup_mode="rich")

DECODE_EPILOG = """[bold]Examples[/]

medusaq bench decode

medusaq bench decode --prompts spec_bench.jsonl

medusaq bench decode --prompts spec_bench.jsonl --requests 1,4 --limit 32 --model model.gguf --json out.json

FILE has one JSON object per line, with category and turns (Spec-Bench); the first turn is the prompt. Prompts
are decoded greedily, without and with drafts, in alternating steps. Only steps without prefill are timed.
ratio is the speed with drafts divided by plain speed; ratio_low ("at least") is its lower 95 % bound over the
pairs of runs."""


SAMPLE = Path(cli.prompts.__file__).with_name("decode_sample.jsonl")  # written for this project
CELLS_A_REQUEST = 1280  # tokens of the longest Spec-Bench prompts with their answers


@dataclass(frozen=True, slots=True)
class _Line:
    category: str
    text: str


@bench.callback()
def _group() -> None:
    """Measure this machine."""


@bench.command("decode", epilog=DECODE_EPILOG)
def decode(
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Spec-Bench file (JSON lines with category and turns). (default: 24 prompts in the package)",
        ),
    ] = None,
    requests: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of concurrent requests.")
    ] = "1,2,4,8,16",
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 128,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use only this many prompts, spread over the file. (default: all)"),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="GGUF path. (default: SmolLM2-135M-Instruct)")] = None,
    heads: Annotated[
        Path | None, typer.Option(help="File of draft heads. (default: those in the package)")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the measured rows here, as JSON.")
    ] = None,
) -> None:
    """Compare speculative and plain decoding, by number of requests and by category."""
    numbers = _numbers(requests)
    rows = _thin(_read(prompts or SAMPLE), limit)
    if json_path is not None:
        check_writable("--json", json_path, [prompts, model, heads])
    try:
        from engine import EngineError, ModelLoadError
        from engine.tools.decode_benchmark import DecodeBenchmark, Prompt
    except ImportError as error:
        raise CliError(f"measuring needs {error.name}: {to_install('worker')}") from None
    try:
        benchmark = DecodeBenchmark(_config(numbers, model, heads), max_tokens)
        pairs = _measure(benchmark, [Prompt(row.category, row.text) for row in rows], numbers)
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    except EngineError as error:
        raise CliError(error.message) from None
    _print(pairs, ", ".join(benchmark.sources))
    if json_path is not None:
        write(json_path, (json.dumps([p.row().json() for p in pairs], indent=1) + "\n").encode())


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--requests: {text!r} must be a list of numbers such as 1,2,4") from None
    if not all(1 <= n <= 62 for n in numbers):
        raise BadInput("--requests: each number must be between 1 and 62")
    return numbers


def _read(path: Path) -> list[_Line]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8 text") from None
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise BadInput(f"{path}: the file has no prompts")
    return rows


def _row(path: Path, number: int, line: str) -> _Line:
    try:
        row: Any = json.loads(line)
        category, turns = row["category"], row["turns"]
        text = turns[0] if isinstance(turns, list) else None
    except (ValueError, TypeError, KeyError, IndexError):
        raise BadInput(f"{path}, line {number}: not a JSON object with category and turns") from None
    if not isinstance(category, str) or not isinstance(text, str) or not text or not is_unicode(text):
        raise BadInput(f"{path}, line {number}: category and the first of turns must be text")
    return _Line(category, text)


def _thin(rows: list[_Line], limit: int | None) -> list[_Line]:
    count = min(limit or len(rows), len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def _config(numbers: list[int], model: Path | None, heads: Path | None) -> Any:
    """The engine's settings. Prefix sharing is off: each second run would reuse the prompts of the first."""
    from engine import EngineConfig
    from engine.base.config import DEFAULT_KV_CELLS

    slots = max(numbers)
    return EngineConfig(
        model=None if model is None else str(model),
        heads=None if heads is None else str(heads),
        slots=slots,
        kv_cells=max(DEFAULT_KV_CELLS, CELLS_A_REQUEST * slots),
        prefix_sharing=False,
    )


def _measure(benchmark: Any, prompts: list[Prompt], numbers: list[int]) -> list[Pairs]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    measured: list[Pairs] = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        benchmark.warm_up(prompts[0])
        for number in numbers:
            task = progress.add_task(f"{number} concurrent", total=None)
            measured += benchmark.measure(
                prompts, number, lambda done, of, task=task: progress.update(task, completed=done, total=of)
            )
    return measured


def _print(pairs: list[Pairs], sources: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=f"drafts from {sources}", box=None)
    table.add_column("requests", justify="right")
    table.add_column("category")
    for name in ("plain tok/s", "tok/s", "ratio", "at least", "tok/step", "accepted", "outside", "prompts"):
        table.add_column(name, justify="right")
    for pair in pairs:
        row = pair.row()
        table.add_row(
            str(row.requests),
            row.category,
            f"{row.plain_tokens_per_s:.1f}",
            f"{row.tokens_per_s:.1f}",
            f"{row.ratio:.3f}",
            f"{row.ratio_low:.3f}",
            f"{row.tokens_per_step:.2f}",
            f"{row.acceptance:.2f}",
            f"{pair.outside():.1%}",
            str(row.n_prompts),
        )
    Console().print(table)
    typer.echo("outside: share of a drafted step's time spent outside llama.cpp: heads, drafting, acceptance")
