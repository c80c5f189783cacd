"""What was found in an input, and the streams of inputs."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.base.errors import BadInput, writing
from cli.base.output_files import STDIN

CHUNK = 1 << 20


@dataclass(frozen=True)
class InputSummary:
    """kinds counts lines by format; total includes the bad ones. own_max_tokens: lines that bring theirs.

    first_problem: of a bad line, with its place; "" if there is none.
    """

    total: int
    bad: int
    kinds: Counter[str]
    own_max_tokens: int
    first_problem: str = ""

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
