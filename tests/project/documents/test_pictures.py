"""The pictures of the documents are those that their sources draw."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures import architecture
from docs.pictures.measured import cells, throughput
from docs.pictures.measured.blocks import between
from docs.pictures.measured.throughput import Figures, System, block, draw

SAMPLE = Figures(
    processor="Some <CPU>",
    cores=2,
    date="2026-01-31",
    commit="abc1234",
    model="model.gguf",
    requests=48,
    output_tokens=128,
    systems=[System("medusaq run", True, [110.0, 114.0, 90.0]), System("llama-server", False, [61.0])],
)


def words(picture: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("text")]


def test_the_architecture_is_that_of_its_source() -> None:
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.draw()
    assert {"Gateway", "Redis", "Model worker", *architecture.STEPS} <= set(words(architecture.draw()))


def test_the_chart_and_its_words_are_those_of_the_measured_file() -> None:
    page = between(throughput.README.read_text(encoding="utf-8"), "throughput")
    if not throughput.FIGURES.exists():
        assert not throughput.PICTURE.exists()
        assert throughput.PICTURE.name not in page
        return
    figures = Figures.read(throughput.FIGURES)
    assert throughput.PICTURE.read_text(encoding="utf-8") == draw(figures)
    assert page == block(figures)


def test_bars_are_medians_and_the_slowest_is_above() -> None:
    shown = words(draw(SAMPLE))
    assert shown.index("61.0") < shown.index("110.0")
    assert shown[-1].endswith("2 cores of Some <CPU>, 2026-01-31, commit abc1234")


def test_what_was_measured_is_read_as_it_was_written(tmp_path: Path) -> None:
    SAMPLE.write(tmp_path / "figures.json")
    assert Figures.read(tmp_path / "figures.json") == SAMPLE


def test_the_readme_gets_the_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIGURES", "PICTURE", "README"):
        monkeypatch.setattr(throughput, name, tmp_path / getattr(throughput, name).name)
    throughput.README.write_text("before\n<!-- throughput -->\nold\n<!-- /throughput -->\nafter\n")
    SAMPLE.write(throughput.FIGURES)
    for _ in range(2):
        throughput.main()
        page = throughput.README.read_text()
        assert page.startswith("before\n")
        assert page.endswith("<!-- /throughput -->\nafter\n")
        assert between(page, "throughput") == block(SAMPLE)
    assert throughput.PICTURE.read_text() == draw(SAMPLE)


CURVES = cells.Figures(
    processor="Some <CPU>",
    cores=2,
    date="2026-01-31",
    commit="abc1234",
    model="model.gguf",
    steps=16,
    kv_cells=13312,
    points=[
        cells.Point(4, 2000, [44.0, 40.0, 48.0], [40.0, 40.0, 40.0]),
        cells.Point(1, 2000, [20.0, 20.0, 20.0], [20.0, 25.0, 10.0]),
        cells.Point(1, 100, [10.0, 9.0, 11.0], [10.0, 10.0, 10.0]),
    ],
)


def test_the_curves_and_their_table_are_those_of_the_measured_file() -> None:
    pages = [
        between(page.read_text(encoding="utf-8"), cells.BLOCK)
        for page in (cells.CHART_PAGE, cells.TABLE_PAGE)
    ]
    if not cells.FIGURES.exists():
        assert not cells.PICTURE.exists()
        assert pages == ["", ""]
        return
    figures = cells.Figures.read(cells.FIGURES)
    assert cells.PICTURE.read_text(encoding="utf-8") == cells.draw(figures)
    assert pages == [cells.block(figures), cells.table(figures)]


def test_the_documents_get_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIGURES", "PICTURE", "CHART_PAGE", "TABLE_PAGE"):
        monkeypatch.setattr(cells, name, tmp_path / getattr(cells, name).name)
    for path in (cells.CHART_PAGE, cells.TABLE_PAGE):
        path.write_text("before\n<!-- cells -->\n<!-- /cells -->\nafter\n")
    CURVES.write(cells.FIGURES)
    for _ in range(2):
        cells.main()
        for path, words_of in ((cells.CHART_PAGE, cells.block), (cells.TABLE_PAGE, cells.table)):
            assert path.read_text() == f"before\n<!-- cells -->\n{words_of(CURVES)}<!-- /cells -->\nafter\n"
    assert cells.PICTURE.read_text() == cells.draw(CURVES)


def test_lines_are_medians_by_cells_and_less_time_is_below(tmp_path: Path) -> None:
    CURVES.write(tmp_path / "cells.json")
    assert cells.Figures.read(tmp_path / "cells.json") == CURVES
    picture = cells.draw(CURVES)
    assert {"1 request", "4 requests", "100", "2,000", "10 ms", "20 ms"} <= set(words(picture))
    lines = [
        [tuple(map(float, point.split(","))) for point in node.attrib["points"].split()]
        for node in ElementTree.fromstring(picture).iter()
        if node.tag.endswith("polyline")
    ]
    ours, theirs, more, _ = lines[-4:]  # after those of the legend
    assert ours == theirs, "equal medians"
    assert ours[0][0] < ours[1][0] == more[0][0]
    assert ours[0][1] > ours[1][1] > more[0][1]


def test_the_table_of_curves_has_what_was_measured() -> None:
    assert cells.table(CURVES).splitlines() == [
        "| cells each | 1 request | 4 requests |",
        "|---|---|---|",
        "| 100 | 10.0, 10.0, 1.00 |  |",
        "| 2,000 | 20.0, 20.0, 1.00 | 44.0, 40.0, 1.10 |",
        "",
        "model.gguf, 2 cores of Some <CPU>, 2026-01-31, commit abc1234;",
        "medians of 3 pairs of runs, 16 steps in each, `MEDUSAQ_KV_CELLS=13312`.",
    ]
