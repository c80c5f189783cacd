"""The syntax of ids, by which they are created and checked.

Ids become parts of Redis keys, where a colon is a separator: an id from outside is looked up only if it
matches.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

_HEX = "[0-9a-f]{32}"  # of a random UUID
_LINE = "[1-9][0-9]{0,9}"  # the number of a line in a batch file


@dataclass(frozen=True, slots=True)
class IdSyntax:
    """One kind of id: prefix, underscore, and what matches the regular expression `rest`."""

    prefix: str
    rest: str = _HEX

    @property
    def pattern(self) -> str:
        """Anchored, in the common subset of Python's and ECMA's regular expressions."""
        return f"^{self.prefix}_{self.rest}$"

    def new(self) -> str:
        """A fresh random id."""
        return f"{self.prefix}_{uuid.uuid4().hex}"

    def matches(self, text: str) -> bool:
        return re.fullmatch(f"{self.prefix}_{self.rest}", text) is not None


JOB = IdSyntax("job", f"{_HEX}(-{_LINE})?")  # for a batch line: the digits of the batch, and the line
RESPONSE = IdSyntax("resp", JOB.rest)  # the same digits as of its job
BATCH = IdSyntax("batch")
WINDOW = IdSyntax("win", f"{_HEX}-{_LINE}")  # the digits of the batch, and the line it began with
FILE = IdSyntax("file", f"{_HEX}(_output|_error)?")  # for results: the digits of the batch, and which
DELIVERY = IdSyntax("evt", f"{_HEX}(-{_LINE})?")  # as in the id of the job or batch that ended
KEY = IdSyntax("key")
