"""The page of a report, and its table in the terminal."""

from __future__ import annotations

import pytest

from cli.reports.report import Report, Section, Table
from tests.cli.reports.test_comparison import Page

EVIL = "</td></li><script>alert(1)</script>"
TABLE = Table(("type", "size"), [("a", "1"), (EVIL, "2")], ("type",), best=1)


def test_everything_of_a_report_is_on_its_page() -> None:
    sections = [Section("made", table=TABLE, items=["file", EVIL]), Section("failed", failure="why")]
    text = Report("title", "about", "charts", TABLE, "the first", ["note", EVIL], sections).page(b"png")
    shown = Page(text)
    assert shown.texts["p"] == ["about", "", "note", EVIL, "why"]
    assert shown.texts["strong"] == ["the first"]
    assert shown.texts["td"] == ["a", "1", EVIL, "2"] * 2
    assert shown.texts["h2"] == ["made", "failed"]
    assert shown.texts["li"] == ["file", EVIL]
    assert shown.sources == ["data:image/png;base64,cG5n"]
    assert "script" not in shown.tags
    assert text.count('<tr class="best">') == 2
    assert text.count('<td class="text">a</td>') == 2


def test_what_a_report_lacks_leaves_nothing_empty() -> None:
    text = Report("title", "", "charts", Table(("type",), [], ())).page(b"png")
    assert set(Page(text).tags).isdisjoint({"p", "strong", "h2", "ul", "td"})


def test_a_table_in_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    Table(("name", "count"), [("x" * 150, "1"), ("[b]y[/b]", "2,000")], ("name",)).show()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["name", "count"], ["x" * 150, "1"], ["[b]y[/b]", "2,000"]]
    assert lines[1].endswith("     1"), "numbers stand at the right"
