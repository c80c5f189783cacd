"""The pictures of the documents are those that their sources draw, and charts show what was measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from docs.measured import cells, million, peers
from docs.measured.cells import Point
from docs.measured.figures import Table
from docs.pictures import architecture


def measured(**data: Any) -> Table:
    return Table(
        name="-",
        processor="Some <CPU>",
        cores=2,
        date="2026-01-31",
        commit="abc1234",
        model="model.gguf",
        command="-",
        columns=[],
        rows=[],
        data=data,
    )


def words(picture: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("text")]


def test_the_architecture_is_that_of_its_source() -> None:
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.draw()
    assert {"Gateway", "Redis", "Model worker", *architecture.STEPS} <= set(words(architecture.draw()))


def test_bars_are_in_groups_and_the_slowest_is_above() -> None:
    groups = {"1": {"medusaq run": 60.0, "llama-server": 61.0}, "16": {"medusaq run": 110.0, "vLLM": 90.0}}
    shown = words(peers.draw(measured(**groups)))
    assert [
        word for word in shown if word in ("1 at once", "60.0", "61.0", "16 at once", "90.0", "110.0")
    ] == [
        "1 at once",
        "60.0",
        "61.0",
        "16 at once",
        "90.0",
        "110.0",
    ]
    assert shown[-1] == "model.gguf, 2 cores of Some <CPU>, 2026-01-31, commit abc1234"


POINTS = [
    Point(4, 2000, [44.0, 40.0, 48.0], [40.0, 40.0, 40.0]),
    Point(1, 2000, [20.0, 20.0, 20.0], [20.0, 25.0, 10.0]),
    Point(1, 100, [10.0, 9.0, 11.0], [10.0, 10.0, 10.0]),
]


def test_lines_are_medians_by_cells_and_less_time_is_below() -> None:
    picture = cells.draw(measured(points=[asdict(point) for point in POINTS]))
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
    assert cells.columns([1, 4]) == ["cells each", "1 request", "4 requests"]
    assert cells.row(100, [1, 4], POINTS) == ["100", "10.0, 10.0, 1.00", ""]
    assert cells.row(2000, [1, 4], POINTS) == ["2,000", "20.0, 20.0, 1.00", "44.0, 40.0, 0.91"]


def test_a_file_of_many_lines_has_a_rate_and_the_memory_of_each_process() -> None:
    run = million.Run(1000, 10.0, [0.0, 5.0, 10.0], [0, 600, 1000], {"gateway": [2**20, 2**21, 3 * 2**20]})
    assert [rate for _, rate in run.rates()] == [120.0, 80.0]
    shown = words(million.draw(measured(**asdict(run))))
    assert {"1,000 lines in 10 s, 100 a second", "gateway, 3 MB", "10 s"} <= set(shown)
