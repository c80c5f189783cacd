"""`medusaq compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.errors import EXIT_FAILURE, BadInput, CliError
from cli.base.output_files import check_writable, write

if TYPE_CHECKING:
    from rich.console import Console

    from cli.reports.comparison import Compared

COMPARE_EPILOG = """[bold]Examples[/]

medusaq compare "Write a haiku about rain." "List the months."

medusaq compare --prompts prompts.jsonl --max-tokens 128 -o charts.png --html charts.html

Each prompt is decoded plainly (normal), with draft heads at every step (medusa), and with drafts where they
are expected to help (auto), one after the other. All three find the prompt in the prefix cache. The columns
heads, lookup and grammar have the accepted and the verified draft tokens of each source.

Texts differ only if rounding decides a near-tie between two tokens, and never with MEDUSAQ_BATCH_INVARIANT=1.
For such a text the prompt is decoded plainly once more, with log-probabilities: a line below the table says
from which token on it differs, and how far apart the two tokens were. A great gap is a bug at temperature 0;
above it tokens are drawn, and "acceptance": "typical" is lossy.

Exit codes: 0 done, 1 failed, 2 bad input, 3 no model, 4 no gateway, 130 Ctrl-C."""


def compare_command(
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="The prompts.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--prompts", metavar="FILE", help="Read prompts from a jsonl, text or csv file; - is stdin."
        ),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer. (default: 256)")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PNG", help="Write the charts here.")
    ] = Path("compare.png"),
    html: Annotated[Path, typer.Option(help="Write table, charts and texts here.")] = Path("compare.html"),
    url: Annotated[
        str | None,
        typer.Option(help="URL of a running gateway. (default: start a local stack for this command)"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="GGUF path for the local stack; with --url the name of a served model."),
    ] = None,
) -> None:
    """Compare decoding with and without drafts: a table, four charts, and both texts."""
    from rich.console import Console

    from cli.gateway.client import check_url
    from cli.reports import charts, comparison_report
    from cli.run.run import say
    from cli.stack.ephemeral_stack import gateway

    address = check_url(url) if url is not None else None
    check_writable("-o", output, [file])
    check_writable("--html", html, [file, output])
    name = model if url is not None or model is None else ""
    jobs = _jobs(prompts or [], file, name, {} if max_tokens is None else {"max_tokens": max_tokens})
    charts.check_installed()
    console = Console(stderr=True)
    with gateway(address, model if url is None else None, lambda line: say(console, line)) as where:
        compared = _compare(where, jobs, console)
    for number, one in enumerate(compared, 1):
        if one.failure is not None:
            say(console, f"prompt {number} could not be compared: {one.failure}")
    if all(one.failure is not None for one in compared):
        raise CliError("no prompt could be compared")
    title = "Plain decoding and drafts" + (f", {len(compared)} prompts" if len(compared) > 1 else "")
    report = comparison_report.report(compared, title)
    report.table.show()
    for note in report.notes:
        typer.echo(note)
    png = charts.draw(title, comparison_report.charts(compared))
    write(output, png)
    write(html, report.page(png).encode(errors="replace"))
    typer.echo(f"charts: {output}, {html}")
    if any(one.failure is not None for one in compared):
        raise typer.Exit(EXIT_FAILURE)


def _jobs(
    prompts: Sequence[str], file: str | None, model: str | None, defaults: dict[str, Any]
) -> list[dict[str, Any]]:
    """The bodies of POST /v1/jobs. Raises BadInput for the first invalid prompt."""
    from cli.prompts.prompt_reader import ReadOptions
    from cli.prompts.source import opened_source
    from tasks.schema.job_request import job_problems

    options = ReadOptions(model=model, defaults=defaults)
    options.check()
    if bool(prompts) == (file is not None):
        raise BadInput("give either prompts or --prompts FILE")
    if file is None:
        given = {**defaults, **({"model": model} if model else {})}
        jobs = [{"prompt": prompt, **given} for prompt in prompts]
        for number, job in enumerate(jobs, 1):
            if problems := job_problems(job):
                raise BadInput(f"prompt {number}: {problems[0]}")
        return jobs
    with opened_source(file, options) as source:
        lines = list(source.lines())
    for line in lines:
        if line.problems:
            raise BadInput(f"{file}, line {line.number}: {line.problems[0]}")
    if not lines:
        raise BadInput(f"{file} has no prompts")
    return [line.job for line in lines]


def _compare(url: str, jobs: Sequence[dict[str, Any]], console: Console) -> list[Compared]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from cli.reports.comparison import WAYS, compare

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("answers", total=len(jobs) * len(WAYS))
        return compare(url, jobs, lambda: progress.advance(task))
