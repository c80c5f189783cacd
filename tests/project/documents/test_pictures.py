"""The pictures of the documents are those that their sources draw."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures import architecture, throughput
from docs.pictures.throughput import Figures, System, between, block, draw

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
    page = between(throughput.README.read_text(encoding="utf-8"))
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
        assert between(page) == block(SAMPLE)
    assert throughput.PICTURE.read_text() == draw(SAMPLE)
