"""Reads pages and pictures that the command has written."""

from __future__ import annotations

import io
from html.parser import HTMLParser

from PIL import Image


class Page(HTMLParser):
    """What a browser would make of it: the text of each element, and where it looks for more."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.sources: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


def size_of(png: bytes) -> tuple[int, int]:
    image = Image.open(io.BytesIO(png))
    image.load()
    assert image.format == "PNG"
    return image.size
