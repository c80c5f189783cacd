"""`medusaq run` and `medusaq validate`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.errors import EXIT_BAD_INPUT, EXIT_FAILURE, BadInput, table_errors
from cli.gateway.request_options import (
    AcceptanceOption,
    DecodingOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TopPOption,
)
from cli.prompts.formats import Format

if TYPE_CHECKING:
    from tables.answers.schema import AnswerSchema

PromptsArgument = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Table (csv, tsv, parquet, xlsx, json, jsonl), folder or pattern of text files, or file of "
        "prompts (jsonl, txt); - is stdin.",
    ),
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="Format of INPUT; batch means OpenAI's batch lines.")
]
TemplateOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Prompt of each row, in which {{ name }} is the value of a column."),
]
TemplateFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the template of the prompt.")
]
ColumnOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Column that is the whole prompt. (default: prompt, or the only column)"
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="System message for every prompt; of a table a template too."),
]
IdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Column of the custom_ids. (default: custom_id, if any)"),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Send prompts without a chat template.")]

RUN_EPILOG = """[bold]Examples[/]

medusaq run reviews.csv -o labelled.csv --template "Classify: {{ review }}" --json "mood:good|bad"

medusaq run questions.xlsx -o answers.xlsx --column question --system "Answer in one sentence."

medusaq run reviews.parquet -o labelled.parquet --template-file prompt.txt --schema answer.json --limit 10

medusaq run prompts.jsonl -o results.jsonl

cat prompts.txt | medusaq run - -o results.jsonl --url http://127.0.0.1:7860 --max-tokens 64

RESULTS of a table have its columns, then answer (or a column for each property of the schema), finish_reason
and error. After an interruption, even kill -9, the same command continues where it stopped. With --url, the
gateway continues meanwhile (medusaq batches list), and the same command fetches the results.

Exit codes: 0 all done, 1 some requests failed, 2 bad input, 3 no model, 4 no gateway, 130 Ctrl-C."""

VALIDATE_EPILOG = """[bold]Examples[/]

medusaq validate prompts.jsonl

medusaq validate reviews.csv --template "Classify this review: {{ review }}" """


def run_command(
    prompts: PromptsArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="RESULTS",
            help="File to write, in input order: csv, tsv, parquet, xlsx or jsonl, by its ending.",
        ),
    ],
    url: Annotated[
        str | None, typer.Option(help="URL of a running gateway. (default: start a local stack for this run)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="GGUF path for the local stack; with --url the name of a served model."),
    ] = None,
    form: FormatOption = Format.AUTO,
    template: TemplateOption = None,
    template_file: TemplateFileOption = None,
    column: ColumnOption = None,
    system: SystemOption = None,
    id_column: IdOption = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON Schema of the answers; each property becomes a column."),
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="NAME:TYPE,...",
            help="Short form of --schema; TYPE is string, integer, number, boolean, or words: good|bad.",
        ),
    ] = None,
    usage: Annotated[bool, typer.Option("--usage", help="Add columns with the token counts.")] = False,
    safe_csv: Annotated[
        bool,
        typer.Option("--safe-csv", help="Quote cells that a spreadsheet program would run as formulas."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Run the first N rows, show them, and ask before all are run."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show three prompts, the tokens and the time; run nothing.")
    ] = False,
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
    """Send a prompt for every row or line of a file, and write the answers in input order."""
    from dataclasses import replace

    from rich.console import Console

    from cli.base.output_files import check_not_read
    from cli.gateway.client import check_url
    from cli.output.preview import show_rows
    from cli.prompts.prompt_reader import ReadOptions
    from cli.run.run import check_results, run
    from cli.run.session import RunOptions

    check_not_read("-o", output, (template_file, schema))
    answers = _schema(schema, fields)
    sampling: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or None,
        "decoding": decoding,
        "acceptance": acceptance,
        "response_format": answers and answers.response_format,
    }
    defaults = {name: value for name, value in sampling.items() if value is not None}
    # A local stack has only one model, so the model names in the lines are ignored.
    name = model if url is not None or model is None else ""
    read = ReadOptions(
        form,
        column,
        system,
        raw,
        name,
        defaults,
        _template(template, template_file),
        id_column,
        limit,
        template_file,
    )
    options = RunOptions(
        source=prompts,
        results=output,
        read=read,
        url=check_url(url) if url is not None else None,
        model_path=model if url is None else None,
        patience_s=patience,
        progress=not no_progress,
        fresh=fresh,
        keep=keep,
        schema=answers,
        usage=usage,
        safe_csv=safe_csv,
    )
    console = Console(stderr=True)
    if dry_run:
        from cli.prompts.dry_run import dry_run as tell

        options.read.check()
        check_results(options)
        typer.echo(tell(prompts, read, options.url, options.model_path))
        return
    outcome = run(options, console)
    if limit is not None and outcome.answers is not None:
        show_rows(output, limit, Console())
        if _confirmed():
            options = replace(options, read=replace(read, limit=None), fresh=True)
            outcome = run(options, console)
        else:
            typer.echo(f"for all rows: {_without_limit()}\n")
    if show:
        typer.echo("\n".join(outcome.beginnings(show)) + "\n")
    typer.echo(outcome.text())
    if outcome.whole.unanswered:
        raise typer.Exit(EXIT_FAILURE)


def validate(
    prompts: PromptsArgument,
    form: FormatOption = Format.AUTO,
    template: TemplateOption = None,
    template_file: TemplateFileOption = None,
    column: ColumnOption = None,
    system: SystemOption = None,
    id_column: IdOption = None,
    raw: RawOption = False,
) -> None:
    """Validate an input without sending it, and print the problems by line or row."""
    from cli.prompts.prompt_reader import PromptLine, ReadOptions
    from cli.prompts.source import opened_source

    source_text = _template(template, template_file)
    options = ReadOptions(form, column, system, raw, template=source_text, id_column=id_column)
    options.check()
    with opened_source(prompts, options) as source:

        def show(line: PromptLine) -> None:
            for problem in line.problems:
                typer.echo(f"{source.unit} {line.number}: {problem}")

        found = source.summarize(show)
        missing = {} if source.table is None else source.rows.missing()
    for name, count in missing.items():
        typer.echo(f"{name} is empty in {count:,} of {found.total:,} rows")
    typer.echo(f"{found.good} good, {found.bad} bad; format: {found.form()}")
    if found.bad:
        raise typer.Exit(EXIT_BAD_INPUT)


def _template(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise BadInput("give either --template or --template-file")
    if file is None:
        return text
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file}: not valid UTF-8") from None


def _schema(file: Path | None, fields: str | None) -> AnswerSchema | None:
    from tables.answers.schema import read_schema, schema_of_fields

    if file is not None and fields is not None:
        raise BadInput("give either --schema or --json, which is its short form")
    with table_errors():
        if file is not None:
            return read_schema(file)
        return None if fields is None else schema_of_fields(fields)


def _confirmed() -> bool:
    """Whether somebody at a terminal says yes."""
    return sys.stdin.isatty() and sys.stdout.isatty() and typer.confirm("Run all rows?")


def _without_limit() -> str:
    """This command for all rows; it replaces the results of the first ones."""
    words = ["medusaq", *sys.argv[1:]]
    kept = [
        word
        for place, word in enumerate(words)
        if word != "--limit" and words[place - 1] != "--limit" and not word.startswith("--limit=")
    ]
    return shlex.join([*kept, *([] if "--fresh" in kept else ["--fresh"])])
