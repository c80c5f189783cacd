"""`medusaq run`: turns a prompt file into a results file, resumably."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cli.base.errors import BadInput, CliError, GatewayUnreachable
from cli.gateway.client import GatewayError, call
from cli.prompts.input_summary import STDIN, opened, sha256, spool, summarize
from cli.run.folder import RunFolder
from cli.run.session import RunOptions, Session
from cli.run.shards import PartFiles
from cli.run.state import RunIdentity, RunRecord, batches_of, binds, load
from cli.run.summary import Outcome


def run(options: RunOptions, console: Console) -> Outcome:
    """Run a prompt file. Raises CliError, after which repeating the call resumes the run."""
    options.read.check()
    _check_results(options.results)
    with RunFolder(options.results, keep=options.keep) as folder:
        if options.fresh:
            _cancel(batches_of(folder.record), options.url)
        elif options.results.exists() and not binds(folder.record):
            raise BadInput(f"{options.results} exists already; --fresh replaces it")
        if options.fresh or not binds(folder.record):
            folder.clear()
        record = _record(options, folder)
        if record.bad:
            say(console, _about_bad(record, options.source))
        session = Session(options, folder, record, console, lambda text: say(console, text))
        try:
            session.run()
        except CliError:
            if options.url is not None and not record.sent:  # a local stack's folder has its logs
                folder.forget()
            raise
        folder.forget()
    if options.url is not None:
        _drop(session.files, options.url)
    overruled = record.own_max_tokens if "max_tokens" in options.read.defaults else 0
    return Outcome(options.results, session.whole, session.summary(), overruled)


def _check_results(results: Path) -> None:
    if str(results) == STDIN:
        raise BadInput("-o must name a file: an unfinished run is kept beside it")
    if results.is_dir():
        raise BadInput(f"{results} is a folder; -o names the file to write")
    if not results.parent.is_dir():
        raise BadInput(f"the folder {results.parent} does not exist")


def _record(options: RunOptions, folder: RunFolder) -> RunRecord:
    """The record of the unfinished run, or of a new one whose input is split into parts."""
    source, suffix = Path(options.source), Path(options.source).suffix
    if options.source == STDIN:
        source, suffix = folder.input, ""
        spool(STDIN, source)
    identity = RunIdentity(sha256(source), _shaping(options))
    if (record := load(folder.record, identity)) is not None:
        return record
    with opened(str(source)) as stream, PartFiles(folder) as files:
        found = summarize(stream, suffix, options.read, files.add)
    if not found.good:
        see = f"medusaq validate {options.source}"
        raise BadInput(f"none of the {found.total} requests is valid; `{see}` says why")
    record = RunRecord(identity, found.total, found.bad, files.parts, own_max_tokens=found.own_max_tokens)
    record.save(folder.record)
    return record


def _about_bad(record: RunRecord, source: str) -> str:
    see = f"medusaq validate {source}"
    return f"{record.bad} of {record.total} requests are invalid; `{see}` says why; sending the others"


def _shaping(options: RunOptions) -> dict[str, object]:
    """The options that affect the results, by their names on the command line."""
    read = asdict(options.read)
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
