"""Table, charts and page of `medusaq compare`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from cli.reports import charts
from cli.reports.comparison import Answer, Compared, together
from cli.reports.comparison_report import charts as charts_of
from cli.reports.comparison_report import columns, report, rows
from cli.reports.difference import Difference
from tasks.records.job import Decoding
from tests.cli.helpers.pages import Page, size_of

pytestmark = pytest.mark.slow


def answer(
    tokens: int = 10,
    seconds: float = 1.0,
    text: str = "x",
    **drafts: tuple[int, int],
) -> Answer:
    """drafts: drafted and accepted tokens by source."""
    drafted = {source: tokens for source, (tokens, _) in drafts.items()}
    accepted = {source: tokens for source, (_, tokens) in drafts.items()}
    return Answer(text, tokens, seconds, tokens - sum(accepted.values()), drafted, accepted)


def compared(title: str = "p", faster: float = 2.0, text: str = "x") -> Compared:
    near = Difference(3, "a near-tie")
    return Compared(
        title,
        {
            Decoding.NORMAL: answer(),
            Decoding.MEDUSA: answer(seconds=1 / faster, medusa=(8, 4), text=text),
            Decoding.AUTO: answer(seconds=0.8, medusa=(0, 0), lookup=(3, 2)),
        },
        differences={} if text == "x" else {Decoding.MEDUSA: near},
    )


def test_rows_of_one_prompt_and_of_several() -> None:
    one = [("p", "normal", "10", "1.00", "10.0", "-", "1.00", "-", "-", "-", "-")]
    one.append(("", "medusa", "10", "0.50", "20.0", "2.00x", "1.67", "50%", "4/8", "-", "same"))
    one.append(("", "auto", "10", "0.80", "12.5", "1.25x", "1.25", "67%", "-", "2/3", "same"))
    assert rows([compared()]) == one
    several = rows([compared(), Compared("bad", {}, "why"), compared(faster=4.0, text="y")])
    assert several[:3] == one
    assert several[4][-1] == "differs at 3"
    assert several[6:] == [
        ("all prompts", "normal", "20", "2.00", "10.0", "-", "1.00", "-", "-", "-", "-"),
        ("", "medusa", "20", "0.75", "26.7", "2.67x", "1.67", "50%", "8/16", "-", "1 of 2 same"),
        ("", "auto", "20", "1.60", "12.5", "1.25x", "1.25", "67%", "-", "4/6", "2 of 2 same"),
    ]


def test_a_column_for_each_source_that_drafted() -> None:
    """The known ones first, under the names that users know; one that proposed nothing has none."""
    plain, drafted = answer(), answer(other=(9, 1), grammar=(3, 3), medusa=(4, 1), lookup=(0, 0))
    answers = {Decoding.NORMAL: plain, Decoding.MEDUSA: answer(medusa=(6, 2)), Decoding.AUTO: drafted}
    one = Compared("p", answers)
    assert columns([one])[-5:] == ("acceptance", "heads", "grammar", "other", "text")
    assert [row[-5:] for row in rows([one])] == [
        ("-", "-", "-", "-", "-"),
        ("33%", "2/6", "-", "-", "same"),
        ("31%", "1/4", "3/3", "1/9", "same"),
    ]
    assert columns([Compared("p", dict.fromkeys(Decoding, plain))])[-2:] == ("acceptance", "text")


def test_an_instant_answer_has_no_speed_up() -> None:
    nothing = Compared("p", dict.fromkeys(Decoding, answer(tokens=0, seconds=0.0)))
    assert nothing.speed_up(Decoding.MEDUSA) is None
    assert rows([nothing])[1] == ("", "medusa", "0", "0.00", "0.0", "-", "-", "-", "same")
    assert columns([nothing])[-2:] == ("acceptance", "text")
    assert size_of(charts.draw("t", charts_of([nothing]))) == (1500, 1125)
    assert together([nothing, nothing]).speed_up(Decoding.AUTO) is None


def test_what_the_charts_show() -> None:
    """As the table has it: bars of all together, a dot for each prompt, gains over acceptance."""
    several = [compared(), Compared("bad", {}, "why"), compared(faster=4.0)]
    drawn = charts.figure("two prompts", charts_of(several))
    assert drawn.get_suptitle() == "two prompts"
    speed, seconds, origins, gain = drawn.axes
    lengths = {axes.get_title(): [bar.get_width() for bar in axes.patches] for axes in (speed, seconds)}
    assert lengths == {
        "Tokens a second": pytest.approx([10.0, 20 / 0.75, 12.5]),
        "Seconds, mean of a prompt": pytest.approx([1.0, 0.375, 0.8]),
    }
    assert origins.get_title() == "Tokens a step, by origin"
    parts = {
        part.get_label(): [(bar.get_x(), bar.get_width()) for bar in part] for part in origins.containers
    }
    assert parts == {
        "the model itself": [(0, 1), (0, 1), (0, 1)],
        "heads": [(1, 0), (1, pytest.approx(4 / 6)), (1, 0)],
        "lookup": [(1, 0), (pytest.approx(10 / 6), 0), (1, 0.25)],
    }
    written = [text.get_text() for text in origins.texts if text.get_text()]
    assert written == ["1.00", "1.00", "1.00", "0.67", "0.25", "1.00", "1.67", "1.25"]
    assert [text.get_text() for text in origins.get_legend().get_texts()] == [*parts]
    assert [label.get_text() for label in speed.get_yticklabels()] == ["normal", "medusa", "auto"]
    assert [[x for x, _ in dots.get_offsets()] for dots in speed.collections] == [
        pytest.approx([10.0, 10.0]),
        pytest.approx([20.0, 40.0]),
        pytest.approx([12.5, 12.5]),
    ]
    medusa, whole = (sorted(map(tuple, dots.get_xydata())) for dots in gain.lines[:2])
    assert medusa == [pytest.approx((50.0, 2.0)), pytest.approx((50.0, 4.0))]
    assert whole == [pytest.approx((50.0, 2 / 0.75))]
    assert gain.get_legend().get_texts()[0].get_text() == "medusa: 2.67x"


@pytest.mark.parametrize("drafts", [(10, 0), (10, 1), (10, 5), (10, 10), (0, 0)])
@pytest.mark.parametrize("count", [1, 40])
def test_legends_cover_nothing_and_are_inside_the_picture(count: int, drafts: tuple[int, int]) -> None:
    """By where its parts are drawn, whatever the points."""
    one = answer(medusa=drafts, lookup=drafts[::-1])
    many = [
        Compared("p", {way: replace(one, seconds=1 / (1 + n)) if n else one for way in Decoding})
        for n in range(count)
    ]
    drawn = charts.figure("t", charts_of(many))
    FigureCanvasAgg(drawn).draw()
    origins = drawn.axes[2]
    ticks = [label.get_window_extent() for label in origins.get_xticklabels()]
    assert not any(origins.get_legend().get_window_extent().overlaps(tick) for tick in ticks)
    inside = origins.get_window_extent()
    assert all(text.get_window_extent().x1 < inside.x1 for text in origins.texts if text.get_text())
    for axes in drawn.axes[-2:]:
        legend = axes.get_legend().get_window_extent()
        assert not legend.overlaps(axes.get_window_extent()), "nothing that is drawn can be behind it"
        assert all(not legend.overlaps(other.get_tightbbox()) for other in drawn.axes if other is not axes)
        assert drawn.bbox.x0 <= legend.x0
        assert legend.x1 <= drawn.bbox.x1
        assert legend.y1 <= drawn.bbox.y1
        assert axes.get_window_extent().width > drawn.bbox.width / 5, "the legend leaves room for the points"


@pytest.mark.parametrize("count", [1, 2, 100])
def test_charts_of_any_number(count: int) -> None:
    many = [compared(f"p{n}", faster=0.5 + n / 50) for n in range(count)]
    bad = Compared("bad", {}, "why")
    assert size_of(charts.draw("with $x$ and _ in it", charts_of([*many, bad]))) == (1500, 1125)


def test_the_page_escapes_everything() -> None:
    evil = "</pre><script>alert(1)</script>"
    shown = Page(report([compared(evil, text=evil), Compared(evil, {}, evil)], evil).page(b"png"))
    assert "script" not in shown.tags
    assert shown.texts["h1"] == shown.texts["title"] == [evil]
    assert shown.texts["pre"] == ["x", evil, "x"]
    assert shown.texts["h2"] == [f"1. {evil}", f"2. {evil}"]
