"""A comparison as a table, as charts and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from cli.reports.charts import BLUE, GREY, ORANGE, Bars, Lines, Series
from cli.reports.comparison import WAYS, Answer, Compared, together
from cli.reports.report import Report, Section, Table
from tasks.records.job import Decoding

COLUMNS = (
    "prompt",
    "decoding",
    "tokens",
    "seconds",
    "tokens/s",
    "speed-up",
    "tokens/step",
    "acceptance",
    "text",
)
TEXT_COLUMNS = ("prompt", "decoding", "text")
ABOUT = (
    'Seconds leave the queue out. Speed-up is in tokens a second, over decoding "normal"; text says whether '
    'the answer is that of "normal": outside batch-invariant mode, rounding may tip a near-tie between two '
    "tokens."
)
CHARTS = "Tokens a second, time, tokens, and acceptance with speed-up"
COLOURS = {Decoding.NORMAL: GREY, Decoding.MEDUSA: ORANGE, Decoding.AUTO: BLUE}


def report(compared: Sequence[Compared], title: str) -> Report:
    sections = [_section(number, one) for number, one in enumerate(compared, 1)]
    return Report(title, ABOUT, CHARTS, Table(COLUMNS, rows(compared), TEXT_COLUMNS), sections=sections)


def rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """One of COLUMNS for each prompt and way; for several prompts, also of all together."""
    good = _good(compared)
    found = [row for one in good for row in _rows(one)]
    if len(good) > 1:
        whole = together(good)
        same = {way: sum(one.same_text(way) for one in good) for way in WAYS}
        for way, row in zip(WAYS, _rows(whole), strict=True):
            text = "-" if way is Decoding.NORMAL else f"{same[way]} of {len(good)} same"
            found.append((*row[:-1], text))
    return found


def charts(compared: Sequence[Compared]) -> list[Bars | Lines]:
    """Of the prompts that did not fail: bars are of all together, dots of single ones."""
    good = _good(compared)
    whole = together(good).answers
    each = "" if len(good) == 1 else ", mean of a prompt"

    def bars(name: str, form: str, values: Sequence[float], value: Callable[[Answer], float]) -> Bars:
        by_name = dict(zip((way.value for way in WAYS), values, strict=True))
        dots = [[value(one.answers[way]) for one in good] for way in WAYS] if len(good) > 1 else []
        return Bars(name, by_name, form, [COLOURS[way] for way in WAYS], dots)

    def means(value: Callable[[Answer], float]) -> list[float]:
        return [fmean(value(one.answers[way]) for one in good) for way in WAYS]

    return [
        bars("Tokens a second", "{:.1f}", [whole[way].tokens_per_s for way in WAYS], _speed),
        bars(f"Seconds{each}", "{:.2f}", means(_seconds), _seconds),
        bars(f"Tokens{each}", "{:.0f}", means(_tokens), _tokens),
        Lines("Acceptance and speed-up", "draft tokens accepted (%)", "speed-up", [*_gains(good)]),
    ]


def _good(compared: Sequence[Compared]) -> list[Compared]:
    return [one for one in compared if one.failure is None]


def _speed(answer: Answer) -> float:
    return answer.tokens_per_s


def _seconds(answer: Answer) -> float:
    return answer.seconds


def _tokens(answer: Answer) -> float:
    return answer.tokens


def _gains(good: Sequence[Compared]) -> Iterator[Series]:
    """A dot for each prompt, and a diamond for all together."""
    whole = together(good)
    for way in (Decoding.MEDUSA, Decoding.AUTO):
        if len(good) > 1:
            yield Series(*_points(good, way), colour=COLOURS[way], line="", marker="o", size=4.0)
        places, ups = _points([whole], way)
        label = f"{way.value}: {ups[0]:.2f}x" if ups else way.value
        yield Series(places, ups, label, COLOURS[way], line="", marker="D", size=9.0)
    yield Series((0.0, 100.0), (1.0, 1.0), "normal", COLOURS[Decoding.NORMAL], line="--", width=1.5)


def _points(compared: Sequence[Compared], way: Decoding) -> tuple[list[float], list[float]]:
    """(acceptance in percent, speed-up). What drafted nothing stands at 0."""
    ups = [(one, one.speed_up(way)) for one in compared]
    found = [(100 * (one.answers[way].acceptance or 0.0), up) for one, up in ups if up is not None]
    return [place for place, _ in found], [up for _, up in found]


def _rows(one: Compared) -> list[tuple[str, ...]]:
    return [_row(one, way) for way in WAYS]


def _row(one: Compared, way: Decoding) -> tuple[str, ...]:
    answer, first = one.answers[way], way is Decoding.NORMAL
    return (
        one.title if first else "",
        way.value,
        f"{answer.tokens:,}",
        f"{answer.seconds:.2f}",
        f"{answer.tokens_per_s:.1f}",
        "-" if first else _number(one.speed_up(way), "{:.2f}x"),
        _number(answer.tokens_per_step, "{:.2f}"),
        _number(answer.acceptance, "{:.0%}"),
        "-" if first else "same" if one.same_text(way) else "differs",
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _section(number: int, one: Compared) -> Section:
    title = f"{number}. {one.title}"
    if one.failure is not None:
        return Section(title, failure=f"Not compared: {one.failure}")
    return Section(title, texts={way.value: one.answers[way].text for way in WAYS})
