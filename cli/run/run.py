"""`medusaq run`: turns a prompt file into a results file, resumably."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cli.base.errors import BadInput, ModelNotLoadable, table_errors
from cli.base.output_files import STDIN, check_not_read
from cli.gateway.client import call
from cli.output.table_results import TableResults
from cli.prompts.input_summary import spool
from cli.prompts.run_time import Work, kind_of, note_run
from cli.prompts.source import STDIN_NAME, Source
from cli.run.folder import RunFolder
from cli.run.result_merge import json_lines
from cli.run.session import RunOptions, Session
from cli.run.shards import PartFiles
from cli.run.state import RunIdentity, RunRecord, batches_of, binds, load
from cli.run.summary import Outcome
from medusaq.errors import GatewayError, GatewayUnreachable, MedusaqError
from tables.base.errors import TableError
from tables.base.kinds import Kind, output_kind
from tables.sources.open_table import files_of, is_many
from tasks.base.settings import get_settings

MAX_XLSX_ROWS = 1_048_575  # of a sheet, beside the header


def run(options: RunOptions, console: Console) -> Outcome:
    """Run a prompt file. Raises MedusaqError, after which repeating the call resumes the run."""
    options.read.check()
    check_results(options)
    if options.url is None:
        _check_model(options.model_path)
    with RunFolder(options.results, keep=options.keep) as folder:
        if options.fresh:
            _cancel(batches_of(folder.record), options.url)
        elif options.results.exists() and not binds(folder.record):
            raise BadInput(f"{options.results} exists already; --fresh replaces it")
        if options.fresh or not binds(folder.record):
            folder.clear()
        source = _source(options, folder)
        sha256 = source.sha256()
        table = _table_results(options, folder, source, sha256)
        record = _record(options, folder, source, sha256, console)
        if record.bad:
            more = source.listing_problems()
            say(console, f"{record.bad:,} of {record.total:,} requests are invalid{more}; sending the others")
        sink = table or json_lines
        session = Session(options, folder, record, console, lambda text: say(console, text), sink)
        try:
            session.run()
        except MedusaqError:
            if options.url is not None and not record.sent:  # a local stack's folder has its logs
                folder.forget()
            raise
        if table is not None and table.output.cut:
            say(console, f"{table.output.cut:,} values were cut: a cell of XLSX holds 32,767 characters")
        folder.forget()
    if options.url is not None:
        _drop(session.files, options.url)
    else:
        _note_time(options, session)
    answers = None if table is None else table.output.answers.columns
    expected = "" if table is None else table.output.expected.text()
    overruled = record.own_max_tokens if "max_tokens" in options.read.defaults else 0
    return Outcome(options.results, session.whole, session.summary(), answers, overruled, expected)


def _note_time(options: RunOptions, session: Session) -> None:
    """For the estimates of later runs. One that went on or waited for a measurement says nothing of time."""
    done, whole = session.summary(), session.whole
    if done.tokens and done.requests == whole.requests and not session.measured_first:
        work = Work(done.requests, whole.prompt_tokens - whole.cached_tokens, done.tokens)
        note_run(options.model_path, kind_of(options.read), work, whole.cached_tokens, done.seconds)


def check_results(options: RunOptions) -> None:
    """Raise BadInput if RESULTS cannot be written, is an input, or its kind does not fit the options."""
    results = options.results
    if str(results) == STDIN:
        raise BadInput("-o must name a file: an unfinished run is kept beside it")
    if results.is_dir():
        raise BadInput(f"{results} is a folder; -o names the file to write")
    if not results.parent.is_dir():
        raise BadInput(f"the folder {results.parent} does not exist")
    check_not_read("-o", results, _files(options.source))
    kept = RunFolder(results).path
    if kept.resolve() in Path(options.source).resolve().parents:
        raise BadInput(f"{options.source} is in {kept}, which a run clears: move it, or change -o")
    with table_errors():
        kind = output_kind(str(results))
    if options.safe_csv and kind not in (Kind.CSV, Kind.TSV):
        raise BadInput("--safe-csv is for results in CSV or TSV")


def _files(source: str) -> Sequence[str | Path]:
    """The files of an input; what is wrong with it is told where it is read."""
    path = Path(source)
    with contextlib.suppress(TableError):
        return files_of(path) if source != STDIN and is_many(path) else [source]
    return []


def _check_model(given: str | None) -> None:
    """Raise ModelNotLoadable for a model that is not there, before the input is read and a stack started."""
    model = given or get_settings().model
    if model is None or Path(model).exists():
        return
    from engine import ModelLoadError  # which loads llama.cpp
    from engine.tools.model_registry import Register

    try:
        path = Register().resolve(model).path
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    if path is not None and not Path(path).exists():
        raise ModelNotLoadable(f"{path}: no such file")


def _source(options: RunOptions, folder: RunFolder) -> Source:
    """The input. Raises BadInput if its results cannot be of the kind that RESULTS asks for."""
    path, name = Path(options.source), options.source
    if options.source == STDIN:
        path, name = folder.input, STDIN_NAME
        spool(STDIN, path)
    tabular = output_kind(str(options.results)) is not Kind.LINES
    source = Source(path, name, options.read, tabular)
    if source.table is None:
        if tabular:
            raise BadInput(
                f"{name} is read as requests, whose results are JSON lines: name a .jsonl file, or say with "
                "--template or --column what to send of each row"
            )
        if options.usage:
            raise BadInput("--usage is for tables: batch output lines have the token counts anyway")
    source.check()
    return source


def _table_results(
    options: RunOptions, folder: RunFolder, source: Source, sha256: str
) -> TableResults | None:
    """The sink of a table's results; None if the input holds requests. Raises BadInput."""
    if source.table is None:
        return None
    results = TableResults(
        source,
        source.table,
        sha256,
        options.schema,
        usage=options.usage,
        safe_csv=options.safe_csv,
        scratch=folder.path,
    )
    results.check(options.results)
    return results


def _record(
    options: RunOptions, folder: RunFolder, source: Source, sha256: str, console: Console
) -> RunRecord:
    """The record of the unfinished run, or of a new one whose input is split into parts."""
    identity = RunIdentity(sha256, _shaping(options))
    if (record := load(folder.record, identity)) is not None:
        return record
    if source.table is not None:
        say(console, f"{source.name}: {source.table.description}")
    with PartFiles(folder) as files:
        found = source.summarize_to_send(files.add)
    if source.table is not None:
        for column, count in source.rows.missing().items():
            say(console, f"{column} is empty in {count:,} of {found.total:,} rows")
        if output_kind(str(options.results)) is Kind.XLSX and found.total > MAX_XLSX_ROWS:
            raise BadInput(
                f"a sheet of XLSX holds {MAX_XLSX_ROWS:,} rows, not {found.total:,}: write CSV or Parquet"
            )
    record = RunRecord(identity, found.total, found.bad, files.parts, own_max_tokens=found.own_max_tokens)
    record.save(folder.record)
    return record


def _shaping(options: RunOptions) -> dict[str, object]:
    """The options that affect the results, by their names on the command line."""
    read = asdict(options.read)
    del read["template_file"]  # its text is what counts
    shaping = {**read.pop("defaults"), **read, "model": options.model_path or options.read.model}
    return {name: value for name, value in shaping.items() if value not in (None, False)}


def _cancel(batches: Sequence[str], url: str | None) -> None:
    """Cancel the batches of a discarded run, as far as this gateway has them."""
    if url is not None:
        _each(batches, lambda batch: call(url, "POST", f"/v1/batches/{batch}/cancel"))


def _drop(files: Sequence[str], url: str) -> None:
    """Delete the files of a finished run; files that cannot be deleted expire."""
    _each(files, lambda file: call(url, "DELETE", f"/v1/files/{file}"))


def _each(ids: Sequence[str], do: Callable[[str], object]) -> None:
    with contextlib.suppress(GatewayUnreachable):
        for one in ids:
            with contextlib.suppress(GatewayError):  # already deleted, or of another gateway
                do(one)


def say(console: Console, line: str) -> None:
    """Print a line without markup and wrapping."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
