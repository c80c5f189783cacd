"""`medusaq run` and `medusaq validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.base.errors import EXIT_BAD_INPUT, EXIT_FAILURE, BadInput
from cli.gateway.request_options import (
    AcceptanceOption,
    DecodingOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TopPOption,
)
from cli.prompts.formats import Format

FormatOption = Annotated[
    Format, typer.Option("--format", help="Format of PROMPTS; batch means OpenAI's batch lines.")
]
ColumnOption = Annotated[
    str | None, typer.Option(help="CSV column of the prompts. (default: prompt, or the only column)")
]
RawOption = Annotated[bool, typer.Option("--raw", help="Send prompts without a chat template.")]

RUN_EPILOG = """[bold]Examples[/]

medusaq run prompts.jsonl -o results.jsonl

medusaq run questions.csv --column question --system "Answer in one sentence." -o results.jsonl

cat prompts.txt | medusaq run - -o results.jsonl --url http://127.0.0.1:7860 --max-tokens 64

After an interruption, even kill -9, the same command continues where it stopped. With --url, the gateway
continues meanwhile (medusaq batches list), and the same command fetches the results.

Exit codes: 0 all done, 1 some requests failed, 2 bad input, 3 no model, 4 no gateway, 130 Ctrl-C."""

VALIDATE_EPILOG = """[bold]Examples[/]

medusaq validate prompts.jsonl

medusaq validate questions.csv --column question"""


def run_command(
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="jsonl, text or csv file; - is stdin.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="RESULTS", help="jsonl file to write, in input order.")
    ],
    url: Annotated[
        str | None, typer.Option(help="URL of a running gateway. (default: start a local stack for this run)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="GGUF path for the local stack; with --url the name of a served model."),
    ] = None,
    form: FormatOption = Format.AUTO,
    column: ColumnOption = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message for every prompt.")
    ] = None,
    raw: RawOption = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens of an answer, for lines that have no max_tokens. (default: 256)"),
    ] = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    decoding: DecodingOption = None,
    acceptance: AcceptanceOption = None,
    patience: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Give up after the gateway was unreachable for this long."
        ),
    ] = 120.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: discard an unfinished run, and replace RESULTS.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder RESULTS.run, with logs, after the end.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress.")] = False,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print the start of the first N answers.")
    ] = 0,
) -> None:
    """Send every prompt of a file and write the results in input order."""
    from rich.console import Console

    from cli.gateway.client import check_url
    from cli.prompts.prompt_reader import ReadOptions
    from cli.run.result_lines import beginnings
    from cli.run.run import run
    from cli.run.session import RunOptions

    sampling: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or None,
        "decoding": decoding,
        "acceptance": acceptance,
    }
    defaults = {name: value for name, value in sampling.items() if value is not None}
    # A local stack has only one model, so the model names in the lines are ignored.
    name = model if url is not None or model is None else ""
    options = RunOptions(
        source=prompts,
        results=output,
        read=ReadOptions(form, column, system, raw, name, defaults),
        url=check_url(url) if url is not None else None,
        model_path=model if url is None else None,
        patience_s=patience,
        progress=not no_progress,
        fresh=fresh,
        keep=keep,
    )
    outcome = run(options, Console(stderr=True))
    if show:
        typer.echo("\n".join(beginnings(output, show)) + "\n")
    typer.echo(outcome.text())
    if outcome.whole.failed:
        raise typer.Exit(EXIT_FAILURE)


def validate(
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="jsonl, text or csv file; - is stdin.")],
    form: FormatOption = Format.AUTO,
    column: ColumnOption = None,
    raw: RawOption = False,
) -> None:
    """Validate a prompt file without sending it, and print the problems by line."""
    from cli.prompts.input_summary import STDIN, opened, summarize
    from cli.prompts.prompt_reader import PromptLine, ReadOptions

    options = ReadOptions(form, column, raw=raw)
    options.check()

    def show(line: PromptLine) -> None:
        for problem in line.problems:
            typer.echo(f"line {line.number}: {problem}")

    suffix = "" if prompts == STDIN else Path(prompts).suffix
    with opened(prompts) as stream:
        try:
            found = summarize(stream, suffix, options, show)
        except OSError as error:
            raise BadInput(f"cannot read {prompts}: {error.strerror}") from None
    typer.echo(f"{found.good} good, {found.bad} bad; format: {found.form()}")
    if found.bad:
        raise typer.Exit(EXIT_BAD_INPUT)
