"""`medusaq compile`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.errors import BadInput, CliError, Interrupted, ModelNotLoadable
from cli.base.installing import to_install
from cli.base.output_files import write

if TYPE_CHECKING:
    from rich.console import Console

    from compiling.base.progress import Progress
    from compiling.result.compilation import Compiled, Options

COMPILE_EPILOG = """[bold]Examples[/]

medusaq compile model.gguf -o compiled

medusaq compile model.gguf -o compiled --types q4_k_m,q8_0 --max-kl 0.05 --load one

medusaq compile model.gguf --for-this-machine

Without SOURCE, the default model is compiled. Finished files and measurements are recorded in
DIR/compile.json: after an interruption, even kill -9, the same command continues where it stopped.
See docs/how-to/compile.md.

Exit codes: 0 done, 1 failed, 2 bad input, 3 no model, 130 Ctrl-C."""
REPORT = "report.html"
LOAD_HELP = "Optimise for one stream (one) or for many concurrent requests (bulk)."


def compile_command(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="GGUF file, checkpoint folder or hub name. (default: SmolLM2-135M-Instruct)",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", file_okay=False, help="Folder for the files and the report."
        ),
    ] = None,
    types: Annotated[
        str | None, typer.Option(metavar="TYPES", help="Number formats to try, such as q4_k_m,q8_0,bf16.")
    ] = None,
    imatrix: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Quantise with an importance matrix of this text.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measure quality on this text. (default: a packaged one)"),
    ] = None,
    max_kl: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Largest KL divergence of the recommended format, nats per token. (default: 0.02)"
        ),
    ] = None,
    load: Annotated[str, typer.Option(help=LOAD_HELP)] = "bulk",
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each speed.")] = 3,
    threads: Annotated[int, typer.Option(min=0, help="0 is every core.")] = 0,
    for_this_machine: Annotated[
        bool,
        typer.Option("--for-this-machine", help="Save the recommended format for workers on this machine."),
    ] = False,
) -> None:
    """Convert and quantise a model, measure each format on this machine, and recommend one."""
    if output is None and not for_this_machine:
        raise BadInput("give -o DIR, the folder for the files and the report, or --for-this-machine")
    if output is not None:
        _check_charts()
    compiled = run(
        source,
        output,
        types=None if types is None else tuple(types.split(",")),
        imatrix=imatrix,
        text=text,
        max_kl=max_kl,
        load=load,
        rounds=rounds,
        threads=threads,
        for_this_machine=for_this_machine,
    )
    _show(compiled, output / REPORT if output is not None else None)
    if for_this_machine:
        made = compiled.source.path
        typer.echo(f"saved for this machine: {_serving(made)}")
        if source is not None and Path(made) != Path(source):
            typer.echo(f"it applies to the converted model: medusaq up --for-this-machine --model {made}")


def run(
    source: str | None,
    folder: Path | None = None,
    *,
    load: str,
    max_kl: float | None = None,
    for_this_machine: bool = False,
    **options: Any,
) -> Compiled:
    """Compile a model with a progress display. folder None is the cache. Raises CliError."""
    try:
        from compiling.base.errors import CompileError, FormatError
        from compiling.machine_format import choose, own_folder
        from compiling.result.compilation import MAX_KL, Options
        from compiling.result.recommendation import Load
        from compiling.run import compile_model
        from engine import EngineError, ModelLoadError
        from engine.llama.model import default_model_path
    except ImportError as error:
        raise CliError(f"compiling needs {error.name}: {to_install('worker,compile')}") from None
    if load not in list(Load):
        raise BadInput(f"--load: must be one or bulk, not {load}")
    try:
        model = source or default_model_path()
        chosen = Options(
            source=model,
            folder=folder or own_folder(model),
            load=Load(load),
            max_kl=MAX_KL if max_kl is None else max_kl,
            **options,
        )
        return _alone(chosen, choose if for_this_machine else compile_model)
    except FormatError as error:
        raise BadInput(str(error)) from None
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    except (CompileError, EngineError) as error:
        raise CliError(str(error)) from None
    except KeyboardInterrupt:
        raise Interrupted("interrupted; repeat the same command to continue") from None


def ensure_chosen(model: str | None, load: str | None) -> str:
    """Describe the number format saved for a model on this machine. Chooses one for this load if needed.

    Raises CliError.
    """
    try:
        from engine import ModelLoadError
        from engine.llama.model import default_model_path
        from engine.weights.saved_format import find_format
    except ImportError as error:
        raise CliError(f"the model worker needs {error.name}: {to_install('worker')}") from None
    try:
        path = model or default_model_path()
        known = find_format(path)
        if known is None or (load is not None and known.load != load):
            run(path, load=load or "bulk", for_this_machine=True)
        return _serving(path)
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None


def _serving(path: str) -> str:
    from engine.weights.saved_format import require_format

    choice = require_format(path)
    return f"{choice.type}: {choice.reason}"


def _check_charts() -> None:
    from cli.reports import charts

    charts.check_installed()


def _alone(options: Options, work: Callable[[Options, Progress], Compiled]) -> Compiled:
    """Do the work while holding the lock of its folder."""
    from rich.console import Console

    from cli.processes.folder_lock import FolderLock
    from compiling.base.resource_check import make_folder

    make_folder(options.folder)
    lock = FolderLock(options.folder, "another compilation")
    lock.acquire()
    try:
        with Steps(Console(stderr=True)) as steps:
            return work(options, steps)
    finally:
        lock.release()


def _show(compiled: Compiled, report: Path | None) -> None:
    from cli.reports import charts, compile_report

    compile_report.table(compiled).show()
    typer.echo(compile_report.explained(compiled))
    if report is not None:
        title = f"{Path(compiled.source.path).stem}: number formats"
        png = charts.draw(title, compile_report.charts(compiled))
        write(report, compile_report.report(compiled, title).page(png).encode(errors="replace"))
        typer.echo(f"report: {report}")
    typer.echo(compile_report.verdict(compiled))


class Steps:
    """A context manager that shows progress: two bars on a terminal, otherwise a line for each step.

    The bars start with the first step, so that they do not overlap the bar of a download.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._whole = self._bars.add_task("steps", total=0)
        self._step = self._bars.add_task("", total=100, visible=False)
        self._count = self._done = 0

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def plan(self, steps: int) -> None:
        self._count, self._done = steps, 0
        self._bars.update(self._whole, total=steps)

    def begin(self, what: str) -> None:
        self._bars.start()
        if not self._console.is_terminal:
            self.say(f"{self._done + 1}/{self._count}  {what}" if self._count else what)
        self._bars.update(self._whole, completed=self._done)
        self._bars.update(self._step, description=what, completed=0, visible=True)
        self._done += 1

    def note(self, share: float) -> None:
        self._bars.update(self._step, completed=int(100 * share))

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
