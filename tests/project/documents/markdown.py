"""The documents as files of markdown: which there are, their links and their anchors."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.workers import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
FENCED = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"")


def links(text: str) -> list[str]:
    """Targets of links and pictures, in markdown and in HTML; code is left out."""
    prose = SPAN.sub("", FENCED.sub("", text))
    return [markdown or html for markdown, html in LINK.findall(prose)]


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them; a repeated heading has a number."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        count = next(n for n in range(len(found) + 1) if (f"{name}-{n}" if n else name) not in found)
        found.add(f"{name}-{count}" if count else name)
    return found


def broken(path: Path, text: str) -> list[str]:
    """Links of a document at this path whose file or anchor is not there."""
    ours = [link for link in links(text) if not link.startswith(("http://", "https://", "mailto:"))]
    return [link for link in ours if not _leads_somewhere(path, text, link)]


def _leads_somewhere(path: Path, text: str, link: str) -> bool:
    target, _, anchor = link.partition("#")
    found = path.parent / target if target else path
    if target and not found.exists():
        return False
    return not anchor or anchor in anchors(found.read_text(encoding="utf-8") if target else text)
