"""Parts of documents that commands write: what is between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

from pathlib import Path


def put_between(document: Path, name: str, made: str) -> None:
    """Write the document again with these lines between the marks. Raises ValueError without them."""
    before, after = around(document, name)
    document.write_text(f"{before}{made}{after}", encoding="utf-8")


def around(document: Path, name: str) -> tuple[str, str]:
    """What stands before and after those lines, marks included. Raises ValueError without them."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, begun, rest = document.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"{document}: has no lines {begin.rstrip()} and {end}")
    return before + begin, end + after
