"""Parts of documents that commands write: what is between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

from pathlib import Path


def between(page: str, name: str) -> str:
    """What the page has between the marks of this name; raises ValueError without them."""
    begin = f"<!-- {name} -->\n"
    return page[page.index(begin) + len(begin) : page.index(f"<!-- /{name} -->")]


def put_between(path: Path, name: str, words: str) -> None:
    """Write the page again with these words between the marks; raises ValueError without them."""
    page = path.read_text(encoding="utf-8")
    begin = f"<!-- {name} -->\n"
    path.write_text(page.replace(begin + between(page, name), begin + words), encoding="utf-8")
