"""`medusaq compile`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import BadInput, CliError, Interrupted, ModelNotLoadable
from cli.outputs import write

if TYPE_CHECKING:
    from rich.console import Console

    from compiling.run import Compiled, Options

COMPILE_EPILOG = """[bold]Examples[/]

medusaq compile model.gguf -o compiled

medusaq compile model.gguf -o compiled --types q4_k_m,q8_0 --max-kl 0.05 --load one

Without SOURCE, the default model. Every finished file and measurement is noted in DIR/compile.json:
broken off at any point, even by kill -9, the same command goes on where it stopped. See docs/compile.md.

Exit codes: 0 done, 1 failed, 2 bad input, 3 no model, 130 Ctrl-C."""
REPORT = "report.html"


def compile_command(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE", help="GGUF, checkpoint folder or hub name. (default: SmolLM2-135M-Instruct)"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Folder of files and report."),
    ] = None,
    types: Annotated[
        str | None, typer.Option(metavar="TYPES", help="Number formats, as in q4_k_m,q8_0,bf16.")
    ] = None,
    imatrix: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Weigh numbers by how this text uses them.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure quality over this text. (default: our own)")
    ] = None,
    max_kl: Annotated[
        float | None,
        typer.Option(min=0.0, help="Most divergence of what is recommended, nats a token. (default: 0.02)"),
    ] = None,
    load: Annotated[
        str, typer.Option(help="What it is to be fast at: one stream (one), or many requests (bulk).")
    ] = "bulk",
    threads: Annotated[int, typer.Option(min=0, help="0 is every core.")] = 0,
) -> None:
    """Convert and quantise a model, measure each format here against the source, recommend one."""
    if output is None:
        raise BadInput("give -o DIR, the folder of files and report")
    try:
        from cli import charts
        from compiling.errors import CompileError, FormatError
        from compiling.recommend import Load
        from compiling.run import MAX_KL, Options
        from engine import EngineError, ModelLoadError
        from engine.model import default_model_path
    except ImportError as error:
        raise CliError(
            f"compiling needs {error.name}: pip install 'medusaq[worker,compile,charts]'"
        ) from None
    if load not in list(Load):
        raise BadInput(f"--load: {load} is neither one nor bulk")
    charts.check_installed()
    try:
        options = Options(
            source=source or default_model_path(),
            folder=output,
            types=None if types is None else tuple(types.split(",")),
            imatrix=imatrix,
            text=text,
            max_kl=MAX_KL if max_kl is None else max_kl,
            load=Load(load),
            threads=threads,
        )
        compiled = _compile(options)
    except FormatError as error:
        raise BadInput(str(error)) from None
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    except (CompileError, EngineError) as error:
        raise CliError(str(error)) from None
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on where it stopped") from None
    _show(compiled, output / REPORT)


def _compile(options: Options) -> Compiled:
    from rich.console import Console

    from cli.lock import FolderLock
    from compiling.room import make_folder
    from compiling.run import compile_model

    make_folder(options.folder)
    lock = FolderLock(options.folder, "another compilation")
    lock.acquire()
    try:
        with Steps(Console(stderr=True)) as steps:
            return compile_model(options, steps)
    finally:
        lock.release()


def _show(compiled: Compiled, report: Path) -> None:
    from rich.console import Console

    from cli import compile_charts, compile_report

    out = Console()
    if not out.is_terminal:
        out.width = 200  # a pipe has no width; cut nothing that a reader may look for
    out.print(compile_report.table(compiled))
    title = f"{Path(compiled.source.path).stem}: number formats"
    png = compile_charts.draw(compiled, title)
    write(report, compile_report.page(compiled, title, png).encode(errors="replace"))
    typer.echo(compile_report.explained(compiled))
    typer.echo(f"report: {report}")
    typer.echo(compile_report.verdict(compiled))


class Steps:
    """How far it is: two bars on a terminal, a line for each step elsewhere. Use as a context."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._whole = self._bars.add_task("steps", total=0)
        self._step = self._bars.add_task("", total=100, visible=False)
        self._count = self._done = 0
        self._began = time.monotonic()

    def __enter__(self) -> Steps:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def plan(self, steps: int) -> None:
        self._count = steps
        self._bars.update(self._whole, total=steps)

    def begin(self, what: str) -> None:
        if not self._console.is_terminal:
            self.say(f"{self._done + 1}/{self._count}  {what}")
        self._bars.update(self._whole, completed=self._done)
        self._bars.update(self._step, description=what, completed=0, visible=True)
        self._done += 1

    def note(self, share: float) -> None:
        self._bars.update(self._step, completed=int(100 * share))

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
