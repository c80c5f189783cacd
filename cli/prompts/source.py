"""An input, which holds requests or is a table, and can be read again and again."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cli.base.errors import BadInput, table_errors
from cli.base.output_files import STDIN
from cli.prompts.formats import KIND_OF, OF_KIND, REQUESTS_OR_ROWS, Format
from cli.prompts.input_summary import InputSummary, opened, spool
from cli.prompts.prompt_reader import DUPLICATE, PromptLine, PromptReader, ReadOptions
from cli.prompts.record_reader import is_json
from tables.base.kinds import Kind, kind_of, reading
from tables.base.table import Table
from tables.sources.open_table import files_of, is_many, open_table

if TYPE_CHECKING:
    from cli.prompts.row_reader import RowReader

PEEK_BYTES = 4096
STDIN_NAME = "standard input"


@dataclass(frozen=True)
class Source:
    """path: the file, folder or pattern. name: what the user calls it, whose ending tells the format.

    tabular: whether the results are to be a table. Raises BadInput, when it is first used.
    """

    path: Path
    name: str
    options: ReadOptions
    tabular: bool = False

    @cached_property
    def form(self) -> Format:
        if self.options.form is not Format.AUTO:
            return self.options.form
        with table_errors():
            if is_many(self.path):
                return Format.FOLDER
            kind = kind_of(self.name)
        if kind in (None, Kind.ARRAY):
            kind = self._sniffed(kind)
        return OF_KIND[kind]

    @cached_property
    def table(self) -> Table | None:
        """The table; None if the input holds requests."""
        form = self.form
        if form is Format.BATCH:
            return None
        if (
            form in REQUESTS_OR_ROWS
            and not self.options.of_rows
            and not (self.tabular and form is Format.TEXT)
        ):
            return None
        with table_errors():
            return open_table(self.path, name=self.name, kind=KIND_OF[form])

    def check(self) -> None:
        """Raise BadInput for columns that the options name and the table lacks."""
        if self.table is not None:
            assert self.rows

    def summarize(self, each: Callable[[PromptLine], None]) -> InputSummary:
        """Read everything, calling each for every line. Raises BadInput if there is no line."""
        total = bad = own = 0
        kinds: Counter[str] = Counter()
        first = ""
        for line in self.lines(kinds):
            total += 1
            bad += bool(line.problems)
            own += line.own_max_tokens
            if line.problems and not first:
                first = f"{self.unit} {line.number}: {line.problems[0]}"
            each(line)
        if not total:
            raise BadInput("the table has no rows" if self.table else "the input has no prompts")
        return InputSummary(total, bad, kinds, own, first)

    def summarize_to_send(self, each: Callable[[PromptLine], None]) -> InputSummary:
        """Likewise for a run. Raises BadInput also if two rows have one id, and if no line is valid."""

        def see(line: PromptLine) -> None:
            for problem in line.problems if self.options.id_column is not None else ():
                if problem.code == DUPLICATE:
                    advice = "name a column whose values differ, or leave --id out"
                    raise BadInput(f"--id {self.options.id_column}: row {line.number}: {problem}: {advice}")
            each(line)

        found = self.summarize(see)
        if not found.good:
            more = self.listing_problems()
            raise BadInput(f"none of the {found.total:,} requests is valid: {found.first_problem}{more}")
        return found

    def listing_problems(self) -> str:
        """The advice with a command that works as it stands, to follow a message; "" if there is none."""
        read = self.options
        given = {
            "--format": None if read.form is Format.AUTO else read.form.value,
            "--template": read.template if read.template_file is None else None,
            "--template-file": read.template_file,
            "--column": read.column,
            "--system": read.system,
            "--id": read.id_column,
        }
        words = [
            word for option, value in given.items() if value is not None for word in (option, str(value))
        ]
        command = shlex.join(["medusaq", "validate", self.name, *words, *["--raw"] * read.raw])
        return "" if self.name == STDIN_NAME or "\n" in command else f"; `{command}` lists all problems"

    @property
    def unit(self) -> str:
        return "line" if self.table is None else "row"

    def lines(self, kinds: Counter[str] | None = None) -> Iterator[PromptLine]:
        """The lines or rows. kinds: counts what they were."""
        kinds = Counter() if kinds is None else kinds
        if self.table is not None:
            for line in self.rows.read():
                kinds[self.table.description] += 1
                yield line
            return
        reader = PromptReader(self.options, self.form, kinds)
        with opened(str(self.path)) as stream:
            yield from reader.read(stream)

    @cached_property
    def rows(self) -> RowReader:
        from cli.prompts.row_reader import RowReader

        assert self.table is not None
        return RowReader(self.table, self.options)

    def sha256(self) -> str:
        """Of the content; of all files, with their names, if there are several."""
        if not is_many(self.path):
            with opened(str(self.path)) as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        whole = hashlib.sha256()
        with table_errors():
            files = files_of(self.path)
        for file in files:
            with opened(str(file)) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            whole.update(f"{digest} {file.name!r}\n".encode())
        return whole.hexdigest()

    def _sniffed(self, kind: Kind | None) -> Kind:
        """By the content: of .json files, and where the ending tells nothing."""
        with table_errors(), reading(self.path, self.name) as stream:
            start = stream.read(PEEK_BYTES)
        if kind is Kind.ARRAY or is_json(start):
            return Kind.ARRAY if _first(start) == b"[" and kind is Kind.ARRAY else Kind.LINES
        return Kind.CSV if self.options.of_rows else Kind.TEXT


@contextlib.contextmanager
def opened_source(source: str, options: ReadOptions) -> Iterator[Source]:
    """The source that a command names; standard input is copied to a temporary file."""
    if source != STDIN:
        yield Source(Path(source), source, options)
        return
    with tempfile.TemporaryDirectory(prefix="medusaq-") as folder:
        path = Path(folder) / "input"
        spool(STDIN, path)
        yield Source(path, STDIN_NAME, options)


def _first(start: bytes) -> bytes:
    return start.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
