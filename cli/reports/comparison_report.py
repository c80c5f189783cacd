"""A comparison as a table, as charts and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, islice
from statistics import fmean

from cli.reports.charts import BLUE, FURTHER, GREY, ORANGE, Bars, Chart, Lines, Parts, Series
from cli.reports.comparison import WAYS, Answer, Compared, together
from cli.reports.report import Report, Section, Table
from tasks.records.job import Decoding

FIRST_COLUMNS = (
    "prompt",
    "decoding",
    "tokens",
    "seconds",
    "tokens/s",
    "speed-up",
    "tokens/step",
    "acceptance",
)
TEXT_COLUMNS = ("prompt", "decoding", "text")
ABOUT = (
    'Seconds leave the queue out. Speed-up is in tokens a second, over decoding "normal". Acceptance is that '
    "of all draft tokens; the columns after it have accepted and verified ones of each source. Text says "
    'whether the answer is that of "normal": outside batch-invariant mode, rounding may tip a near-tie '
    "between two tokens."
)
CHARTS = "Tokens a second, time, tokens a step by origin, and acceptance with speed-up"
COLOURS = {Decoding.NORMAL: GREY, Decoding.MEDUSA: ORANGE, Decoding.AUTO: BLUE}
SOURCES = {"medusa": "heads", "lookup": "lookup", "grammar": "grammar"}  # as users know them, in this order
OWN = "the model itself"


def report(compared: Sequence[Compared], title: str) -> Report:
    sections = [_section(number, one) for number, one in enumerate(compared, 1)]
    table = Table(columns(compared), rows(compared), TEXT_COLUMNS)
    return Report(title, ABOUT, CHARTS, table, notes=notes(compared), sections=sections)


def columns(compared: Sequence[Compared]) -> tuple[str, ...]:
    """One for each draft source that proposed a token."""
    return (*FIRST_COLUMNS, *map(_plain_name, _sources(compared)), "text")


def rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """One for each prompt and way; for several prompts, also of all together."""
    good, sources = _good(compared), _sources(compared)
    found = [row for one in good for row in _rows(one, sources)]
    if len(good) > 1:
        differing = {way: sum(way in one.differences for one in good) for way in WAYS}
        for way, row in zip(WAYS, _rows(together(good), sources), strict=True):
            text = "-" if way is Decoding.NORMAL else f"{len(good) - differing[way]} of {len(good)} same"
            found.append((*row[:-1], text))
    return found


def notes(compared: Sequence[Compared]) -> list[str]:
    """Where texts differ, and how near the tie was."""
    return [
        f"prompt {number}, {way.value}: {difference}"
        for number, one in enumerate(compared, 1)
        for way, difference in one.differences.items()
    ]


def charts(compared: Sequence[Compared]) -> list[Chart]:
    """Of the prompts that did not fail: bars are of all together, dots of single ones."""
    good = _good(compared)
    whole = together(good).answers
    each = "" if len(good) == 1 else ", mean of a prompt"

    def bars(name: str, form: str, values: Sequence[float], value: Callable[[Answer], float]) -> Bars:
        by_name = dict(zip((way.value for way in WAYS), values, strict=True))
        dots = [[value(one.answers[way]) for one in good] for way in WAYS] if len(good) > 1 else []
        return Bars(name, by_name, form, [COLOURS[way] for way in WAYS], dots)

    seconds = [fmean(_seconds(one.answers[way]) for one in good) for way in WAYS]
    return [
        bars("Tokens a second", "{:.1f}", [whole[way].tokens_per_s for way in WAYS], _speed),
        bars(f"Seconds{each}", "{:.2f}", seconds, _seconds),
        _origins([whole[way] for way in WAYS], _sources(good)),
        Lines("Acceptance and speed-up", "draft tokens accepted (%)", "speed-up", [*_gains(good)]),
    ]


def _origins(answers: Sequence[Answer], sources: Sequence[str]) -> Parts:
    """Tokens a step: who proposed them."""
    parts = {OWN: [answer.own_tokens / max(1, answer.steps) for answer in answers]}
    for source in sources:
        accepted = [answer.accepted.get(source, 0) / max(1, answer.steps) for answer in answers]
        parts[_plain_name(source)] = accepted
    colours = [*islice(chain([GREY, ORANGE], cycle(FURTHER)), len(parts))]
    return Parts("Tokens a step, by origin", [way.value for way in WAYS], parts, "{:.2f}", colours)


def _sources(compared: Sequence[Compared]) -> list[str]:
    """The draft sources that proposed a token: the known ones first."""
    drafted = {
        source
        for one in _good(compared)
        for answer in one.answers.values()
        for source, tokens in answer.drafted.items()
        if tokens
    }
    return [source for source in SOURCES if source in drafted] + sorted(drafted - SOURCES.keys())


def _plain_name(source: str) -> str:
    return SOURCES.get(source, source)


def _good(compared: Sequence[Compared]) -> list[Compared]:
    return [one for one in compared if one.failure is None]


def _speed(answer: Answer) -> float:
    return answer.tokens_per_s


def _seconds(answer: Answer) -> float:
    return answer.seconds


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


def _rows(one: Compared, sources: Sequence[str]) -> list[tuple[str, ...]]:
    return [_row(one, way, sources) for way in WAYS]


def _row(one: Compared, way: Decoding, sources: Sequence[str]) -> tuple[str, ...]:
    answer, first = one.answers[way], way is Decoding.NORMAL
    difference = one.differences.get(way)
    return (
        one.title if first else "",
        way.value,
        f"{answer.tokens:,}",
        f"{answer.seconds:.2f}",
        f"{answer.tokens_per_s:.1f}",
        "-" if first else _number(one.speed_up(way), "{:.2f}x"),
        _number(answer.tokens_per_step, "{:.2f}"),
        _number(answer.acceptance, "{:.0%}"),
        *(_share(answer, source) for source in sources),
        "-" if first else "same" if difference is None else f"differs at {difference.number}",
    )


def _share(answer: Answer, source: str) -> str:
    drafted = answer.drafted.get(source, 0)
    return f"{answer.accepted.get(source, 0):,}/{drafted:,}" if drafted else "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _section(number: int, one: Compared) -> Section:
    title = f"{number}. {one.title}"
    if one.failure is not None:
        return Section(title, failure=f"Not compared: {one.failure}")
    return Section(title, texts={way.value: one.answers[way].text for way in WAYS})
