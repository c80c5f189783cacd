"""Documents show what was measured, as docs/measured/figures.json has it, and no other figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from docs.measured import __main__ as documents
from docs.measured.blocks import CHART, FIGURES, NOTHING, names, rendered, shown, without_blocks
from docs.measured.figures import Table, newest, read, record
from tests.project.documents.markdown import DOCUMENTS, FENCED
from tests.support.workers import ROOT

TABLES = read()
# Tables that no processor has measured since they are recorded. Whoever records one takes it from here.
AWAITED = {"cells-3b"}
RECORDED = re.compile(r"\.table\(\s*f?\"([\w-]+)\"")
NAMED = re.compile(r"^(?:NAME|name) = \"([\w-]+)\"", re.MULTILINE)

# A row with figures: a cell begins with a fraction, two begin with numbers, or something has a speed.
NUMBER = re.compile(r"[\d.,]*\d")
FRACTION = re.compile(r"\d*\.\d+(?![\w.])")
SPEED = re.compile(r"\d (?:(?:tokens|lines|jobs|rows|requests|submissions)(?:/s| a second)|a second\b)")


@pytest.mark.parametrize("path", [path for path, _ in documents.wanted(TABLES)], ids=lambda path: path.name)
def test_documents_and_charts_are_as_they_are_rendered(path: Path) -> None:
    content = dict(documents.wanted(TABLES))[path]
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == content, "python -m docs.measured"


def blocks(kind: str) -> set[str]:
    return {name for path in DOCUMENTS for name in names(path.read_text(encoding="utf-8"), kind)}


def test_every_recorded_table_is_shown_and_every_block_has_one() -> None:
    recorded = {table.name for table in TABLES}
    assert recorded <= blocks(FIGURES)
    assert blocks(FIGURES) - recorded == AWAITED
    assert blocks(CHART) == documents.CHARTS.keys()


def test_every_block_has_a_command_that_records_it() -> None:
    recording = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if not path.name.startswith("test_"):
            text = path.read_text(encoding="utf-8")
            recording |= set(RECORDED.findall(text)) | set(NAMED.findall(text))
    by_format = {"decode", "decode-q4_0", "one-request", "one-request-spinning"}
    by_shape = {"widened-as-is", "widened-1b", "widened-3b", "widened-7b", "cells", "cells-3b"}
    assert blocks(FIGURES) - recording == by_format | by_shape


NOT_MEASURED = {  # pages whose figures are something else
    "SECURITY.md": "limits",
    "docs/how-to/security.md": "limits",
    "docs/explanation/software-gpu.md": "a page that `make gpu-check` printed",
    "docs/reference/clients.md": "versions",
    "docs/reference/http-api.md": "defaults and bounds",
    "docs/reference/sizing.md": "examples",
    "docs/tutorials/vicuna.md": "computed from the shapes of a model",
}
HELD = [path for path in DOCUMENTS if str(path.relative_to(ROOT)) not in NOT_MEASURED]


def figures(page: str) -> Iterator[str]:
    """Lines of a page, outside of blocks and of code, that have measured figures."""
    for line in FENCED.sub("", without_blocks(page)).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        numbers = sum(bool(NUMBER.match(cell)) for cell in cells)
        if numbers > 1 or any(FRACTION.match(cell) for cell in cells) or SPEED.search(line):
            yield line


def test_pages_without_measured_figures_exist() -> None:
    assert NOT_MEASURED.keys() <= {str(path.relative_to(ROOT)) for path in DOCUMENTS}


@pytest.mark.parametrize("path", HELD, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_stand_in_blocks(path: Path) -> None:
    assert list(figures(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("| one | 1.14 |", True),
        ("| one | 8 ms | 12 ms |", True),
        ("| one | .50 (.71) |", True),
        ("It decodes 46 tokens/s.", True),
        ("One gateway takes 862 submissions a second.", True),
        ("| its lease expires | 12 s |", False),
        ("| workers of 5.7.0 exit | delays of 0.1 s |", False),
        ("| jobs are read | once a second |", False),
        ("```\ntokens/s 46.0 tokens/s\n```", False),
        ("<!-- figures: x -->\n| one | 1.14 |\n<!-- /figures -->", False),
    ],
)
def test_what_is_a_figure(line: str, found: bool) -> None:
    assert bool(list(figures(line))) is found


TABLE = Table(
    name="speed",
    processor="First",
    cores=2,
    date="2026-01-31",
    commit="abc1234",
    model="m.gguf",
    command="python -m x",
    columns=["system", "tokens/s"],
    rows=[["a|b", "1.0"]],
    notes=["A note."],
)
SECOND = replace(TABLE, processor="Second", date="2026-01-30", rows=[["a|b", "2.0"]])


def test_a_table_is_shown_with_its_origin() -> None:
    assert shown(TABLE).splitlines() == [
        "| system | tokens/s |",
        "| --- | --- |",
        "| a\\|b | 1.0 |",
        "",
        "A note.",
        "",
        "*m.gguf, 2 cores of First, 2026-01-31, commit abc1234:* `python -m x`",
    ]


def test_a_page_gets_the_tables_of_all_processors_and_the_chart_of_the_newest(tmp_path: Path) -> None:
    page = (
        "a\n<!-- figures: speed -->\nold\n<!-- /figures -->\nb\n<!-- chart: speed -->\n<!-- /chart -->\n"
        "<!-- figures: other -->\n<!-- /figures -->\n"
    )
    charts = {"speed": ("Title", tmp_path / "charts" / "speed.svg")}
    for _ in range(2):
        page = rendered(page, tmp_path / "docs", [TABLE, SECOND], charts)
        assert page == (
            f"a\n<!-- figures: speed -->\n{shown(TABLE)}\n{shown(SECOND)}<!-- /figures -->\nb\n"
            "<!-- chart: speed -->\n![Title](../charts/speed.svg)\n\n*m.gguf, 2 cores of First, 2026-01-31, "
            f"commit abc1234.*\n<!-- /chart -->\n<!-- figures: other -->\n{NOTHING}<!-- /figures -->\n"
        )
    assert newest("speed", [TABLE, SECOND]) is TABLE
    of_less = replace(TABLE, processor="Third (A, compiled for B)", date="2027-01-31")
    assert newest("speed", [TABLE, of_less]) is TABLE
    assert newest("speed", []) is None


def test_a_new_run_takes_the_place_of_that_of_the_same_processor(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert read(path) == []
    again = replace(TABLE, rows=[["a|b", "3.0"]], data={"runs": [1.5] * 100})
    first = replace(TABLE, name="a", notes=["long " * 50])
    for table in (TABLE, SECOND, first, again):
        record(table, path)
    assert read(path) == [first, again, SECOND]
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_a_processor_is_told_from_another_of_its_name_by_family_and_model(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    unknown, first, second = (
        replace(TABLE, processor=f"Virtual (AVX2){kind}")
        for kind in ("", ", family 25 model 17", ", family 26 model 2")
    )
    other = replace(TABLE, processor="Virtual (AVX-512)")
    for table in (unknown, other, first, second):
        record(table, path)
    assert read(path) == [first, other, second]
    record(unknown, path)
    again = replace(first, rows=[["a|b", "4.0"]])
    record(again, path)
    assert read(path) == [again, other, second], "one table for both names"
