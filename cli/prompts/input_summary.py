"""Reads a prompt file: counts valid and invalid requests, and computes its hash."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.base.errors import BadInput, writing
from cli.prompts.prompt_reader import PromptLine, PromptReader, ReadOptions

STDIN = "-"
CHUNK = 1 << 20


@dataclass(frozen=True)
class InputSummary:
    """kinds counts lines by format; total includes the bad ones. own_max_tokens: as in PromptReader."""

    total: int
    bad: int
    kinds: Counter[str]
    own_max_tokens: int

    @property
    def good(self) -> int:
        return self.total - self.bad

    def form(self) -> str:
        """The format in words: "jsonl (38 batch lines, 34 plain lines)"."""
        batch, plain = self.kinds["batch"], self.kinds["jsonl"]
        if batch and plain:
            return f"jsonl ({batch} batch lines, {plain} plain lines)"
        if batch:
            return "jsonl, batch lines"
        return next((name for name in self.kinds if name != "unreadable"), "unknown")


def summarize(
    stream: io.BufferedReader, suffix: str, options: ReadOptions, each: Callable[[PromptLine], None]
) -> InputSummary:
    """Read the whole input, calling each for every line. Raises BadInput if it has no requests."""
    reader = PromptReader(options, suffix)
    total = bad = 0
    for line in reader.read(stream):
        total += 1
        bad += bool(line.problems)
        each(line)
    if not total:
        raise BadInput("the input has no prompts")
    return InputSummary(total, bad, reader.kinds, reader.own_max_tokens)


def read_lines(path: Path, suffix: str, options: ReadOptions) -> Iterator[PromptLine]:
    """The lines of a file, which stays open until the last one is read."""
    with opened(str(path)) as stream:
        yield from PromptReader(options, suffix).read(stream)


@contextlib.contextmanager
def opened(source: str) -> Iterator[io.BufferedReader]:
    """A file, or standard input for "-"; raises BadInput with the reason."""
    if source == STDIN:
        stdin = sys.stdin.buffer
        assert isinstance(stdin, io.BufferedReader)
        yield stdin
        return
    with contextlib.ExitStack() as exits:
        try:
            stream = exits.enter_context(Path(source).open("rb"))
        except OSError as error:
            raise BadInput(f"cannot read {source}: {error.strerror}") from None
        yield stream


def spool(source: str, target: Path) -> None:
    """Copy a pipe to a file, so that it can be read twice."""
    with opened(source) as stream, contextlib.ExitStack() as exits:
        with writing(target):
            file = exits.enter_context(target.open("wb"))
        while chunk := stream.read(CHUNK):
            with writing(target):
                file.write(chunk)
                file.flush()


def sha256(path: Path) -> str:
    with opened(str(path)) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
