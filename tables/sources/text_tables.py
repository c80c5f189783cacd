"""Text as a table: the lines of a file, or the files of a folder."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from tables.base.errors import TableError
from tables.base.kinds import reading
from tables.base.table import Row, Table
from tables.sources.sniffing import encoding_of, spoken

MAX_TEXT_CHARS = 16 * 1024 * 1024
TEXT_ENDINGS = (".txt", ".md", ".txt.gz", ".md.gz", ".txt.zst", ".md.zst")


class LinesTable(Table):
    """One column, prompt; one row for each line that is not blank."""

    columns = ("prompt",)

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._encoding = encoding_of(path, name)
        self.description = "lines of text" + spoken(self._encoding)

    def rows(self) -> Iterator[Row]:
        number = 0
        with (
            reading(self._path, self._name) as stream,
            io.TextIOWrapper(stream, self._encoding) as text,
        ):
            while line := text.readline(MAX_TEXT_CHARS + 1):
                if len(line) > MAX_TEXT_CHARS:
                    raise TableError(f"{self._name}: a line is longer than {MAX_TEXT_CHARS:,} characters")
                if line.strip():
                    number += 1
                    yield Row(number, (line.rstrip("\n"),))


class FilesTable(Table):
    """The columns file and text; one row for each file, in the order of their names."""

    columns = ("file", "text")

    def __init__(self, files: Sequence[Path], name: str) -> None:
        if not files:
            raise TableError(f"{name}: holds no text files; their names end in .txt or .md")
        self._files = sorted(files)
        self.description = f"{len(files)} text files"

    def rows(self) -> Iterator[Row]:
        for number, path in enumerate(self._files, 1):
            encoding = encoding_of(path, str(path))
            with (
                reading(path, str(path)) as stream,
                io.TextIOWrapper(stream, encoding) as file,
            ):
                text = file.read(MAX_TEXT_CHARS + 1)
            if len(text) > MAX_TEXT_CHARS:
                raise TableError(f"{path}: longer than {MAX_TEXT_CHARS:,} characters")
            yield Row(number, (path.name, text))


def text_files(folder: Path) -> list[Path]:
    """The text files directly in a folder, without hidden ones."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.name.lower().endswith(TEXT_ENDINGS)
    )
