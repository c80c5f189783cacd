"""Renders the tables of all documents from figures.json, and draws the charts: `python -m docs.measured`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.measured import cells, million, peers
from docs.measured.blocks import rendered
from docs.measured.figures import Table, newest, read

ROOT = Path(__file__).parents[2]
CHARTS = {chart.PICTURE.stem: chart for chart in (peers, cells, million)}


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def wanted(tables: Sequence[Table]) -> Iterator[tuple[Path, str | None]]:
    """Each document and picture as it must be; a picture of which there is no table must not be there."""
    charts = {name: (chart.TITLE, chart.PICTURE) for name, chart in CHARTS.items()}
    for path in documents():
        yield path, rendered(path.read_text(encoding="utf-8"), path.parent, tables, charts)
    for name, chart in CHARTS.items():
        table = newest(name, tables)
        yield chart.PICTURE, None if table is None else chart.draw(table)


def main() -> None:
    for path, content in wanted(read()):
        if content is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
