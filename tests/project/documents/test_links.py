"""Every link of a document, and every document that code and manifests name, is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.project.documents.markdown import DOCUMENTS, anchors, broken, links
from tests.support.workers import ROOT

NAMED = re.compile(r"\b(?:docs/[\w/-]+|[A-Z]{4,})\.md(?:#[\w-]+)?")
TEXTS = {".py", ".yml", ".yaml", ".toml", ".lua", ".json", ".md", ""}


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken(path, path.read_text(encoding="utf-8")) == []


def test_every_document_that_a_file_names_is_there() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    wrong = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix not in TEXTS or not path.is_file() or name.startswith("tests/"):
            continue
        for named in NAMED.findall(path.read_text(encoding="utf-8")):
            document, _, anchor = named.partition("#")
            found = ROOT / document
            if not found.is_file() or (anchor and anchor not in anchors(found.read_text(encoding="utf-8"))):
                wrong.append(f"{name}: {named}")
    assert wrong == []


def test_the_index_links_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in links(index.read_text(encoding="utf-8"))}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path != index}
    assert pages - listed == set()


def test_no_folder_has_more_than_twelve_entries() -> None:
    for folder in (ROOT / "docs", *(path for path in (ROOT / "docs").iterdir() if path.is_dir())):
        assert len([path for path in folder.iterdir() if path.name != "__pycache__"]) <= 12, folder


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](README.md)", []),
        ("[a](none.md) and ![b](none.png)", ["none.md", "none.png"]),
        ('<img src="none.svg">', ["none.svg"]),
        ("# Title one\n\n[a](#title-one) [b](#title-two)", ["#title-two"]),
        ("# Twice\n# Twice\n[a](#twice-1) [b](#twice-2)", ["#twice-2"]),
        ("## `medusaq up`\n[a](#medusaq-up)", []),
        ("```sh\n# not a heading\n```\n[a](#not-a-heading)", ["#not-a-heading"]),
        ("`[code](none.md)` [a](https://example.org/x)", []),
        ("[a](README.md#no-such-anchor)", ["README.md#no-such-anchor"]),
    ],
)
def test_a_broken_link_is_found(text: str, wrong: list[str]) -> None:
    assert broken(ROOT / "page.md", text) == wrong
