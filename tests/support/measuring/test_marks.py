"""What a command puts into a document, again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.measuring.marks import put_between


def test_the_part_between_the_marks_is_replaced(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- x -->\nold\n<!-- /x -->\nafter\n", encoding="utf-8")
    for made in ("new\n", "newer\n"):
        put_between(document, "x", made)
        assert document.read_text(encoding="utf-8") == f"before\n<!-- x -->\n{made}<!-- /x -->\nafter\n"


@pytest.mark.parametrize("page", ["no marks", "<!-- x -->\n", "<!-- /x -->\n", "<!-- y -->\n<!-- /y -->\n"])
def test_a_document_without_the_marks_is_left_alone(tmp_path: Path, page: str) -> None:
    document = tmp_path / "page.md"
    document.write_text(page, encoding="utf-8")
    with pytest.raises(ValueError, match="no lines"):
        put_between(document, "x", "new\n")
    assert document.read_text(encoding="utf-8") == page
