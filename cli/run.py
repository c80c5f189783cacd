"""`medusaq run`: a prompt file in, a results file out, whatever happens in between."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cli.errors import BadInput, CliError
from cli.journal import Journal, RunFolder, RunIdentity, write_results
from cli.progress import Display
from cli.session import RunOptions, Session
from cli.summary import Outcome
from cli.survey import STDIN, Survey, opened, read_lines, sha256, spool, survey
from cli.tally import Tally


def run(options: RunOptions, console: Console) -> Outcome:
    """Raises CliError; what was done until then is in RESULTS.run, and repeating goes on from there."""
    options.read.check()
    _check_results(options.results)
    with RunFolder(options.results) as folder:
        if options.fresh:
            folder.clear()
        elif options.results.exists() and not folder.journal.exists():
            raise CliError(f"{options.results} exists already; --fresh replaces it")
        source, suffix = Path(options.source), Path(options.source).suffix
        if options.source == STDIN:
            source, suffix = folder.path / "input", ""
            spool(STDIN, source)
        found = _survey(source, suffix, options, console)
        identity = RunIdentity(sha256(source), _shaping(options))
        journal = Journal(folder.journal, found.total, identity)
        try:
            session = _session(options, folder, journal, found.total, console)
            if journal.done < found.total:
                session.run(read_lines(source, suffix, options.read))
            whole = Tally()
            write_results(journal, folder, whole.add)
        finally:
            journal.close()
        if not options.keep:
            folder.remove()
    return Outcome(options.results, whole, session.tally, session.seconds, session.occupancy)


def _check_results(results: Path) -> None:
    if str(results) == STDIN:
        raise BadInput("-o must name a file: an unfinished run is kept beside it")
    if results.is_dir():
        raise BadInput(f"{results} is a folder; -o names the file to write")
    if not results.parent.is_dir():
        raise BadInput(f"the folder {results.parent} does not exist")


def _survey(source: Path, suffix: str, options: RunOptions, console: Console) -> Survey:
    with opened(str(source)) as stream:
        found = survey(stream, suffix, options.read, lambda _: None)
    see = f"medusaq validate {options.source}"
    if not found.good:
        raise BadInput(f"none of the {found.total} requests is valid; `{see}` says why")
    if found.bad:
        say(
            console,
            f"{found.bad} of {found.total} requests are invalid; `{see}` says why; sending the others",
        )
    return found


def _session(
    options: RunOptions, folder: RunFolder, journal: Journal, total: int, console: Console
) -> Session:
    if journal.done:
        say(console, f"going on: {journal.done} of {total} requests are done already")
    display = Display(console, total, journal.done, enabled=options.progress)
    return Session(options, journal, total, folder.path / "stack", lambda text: say(console, text), display)


def _shaping(options: RunOptions) -> dict[str, object]:
    """The options that shape results, by their names on the command line."""
    read = asdict(options.read)
    shaping = {**read.pop("defaults"), **read, "model": options.model_path or options.read.model}
    return {name: value for name, value in shaping.items() if value not in (None, False)}


def say(console: Console, line: str) -> None:
    """A line as it stands: no markup, no wrapping."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
