"""The four charts of a comparison: tokens a second, time, tokens, and acceptance with speed-up."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cli.compare import WAYS, Answer, Compared, together
from cli.errors import CliError
from tasks.job import Decoding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {Decoding.NORMAL: "#8c8c8c", Decoding.MEDUSA: "#d55e00", Decoding.AUTO: "#0072b2"}
SIZE = (10.0, 7.5)  # inches
DPI = 150
SPREAD = 0.25  # of the dots of single prompts over a bar's width


def check_installed() -> None:
    """Raise CliError where matplotlib is not installed: before the work, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise CliError(f"charts need {error.name or 'matplotlib'}: pip install 'medusaq[charts]'") from None


def draw(compared: Sequence[Compared], title: str) -> bytes:
    """PNG of the prompts that did not fail."""
    out = io.BytesIO()
    figure(compared, title).savefig(out, format="png")
    return out.getvalue()


def figure(compared: Sequence[Compared], title: str) -> Figure:
    """Bars are of all together, dots of single ones."""
    from matplotlib.figure import Figure

    good = [one for one in compared if one.failure is None]
    drawn = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    drawn.suptitle(title, parse_math=False)
    speed, seconds, tokens, gain = drawn.subplots(2, 2).flat
    whole = together(good).answers
    each = "" if len(good) == 1 else ", mean of a prompt"
    _bars(speed, "Tokens a second", [whole[way].tokens_per_s for way in WAYS], good, _speed, "{:.1f}")
    _bars(seconds, f"Seconds{each}", _means(good, _seconds), good, _seconds, "{:.2f}")
    _bars(tokens, f"Tokens{each}", _means(good, _tokens), good, _tokens, "{:.0f}")
    _gain(gain, good)
    return drawn


def _speed(answer: Answer) -> float:
    return answer.tokens_per_s


def _seconds(answer: Answer) -> float:
    return answer.seconds


def _tokens(answer: Answer) -> float:
    return answer.tokens


def _means(good: Sequence[Compared], value: Callable[[Answer], float]) -> list[float]:
    return [fmean(value(one.answers[way]) for one in good) for way in WAYS]


def _bars(
    axes: Axes,
    name: str,
    heights: Sequence[float],
    good: Sequence[Compared],
    value: Callable[[Answer], float],
    form: str,
) -> None:
    bars = axes.bar([way.value for way in WAYS], heights, color=[COLOURS[way] for way in WAYS], width=0.6)
    many = len(good) > 1
    for position, way in enumerate(WAYS) if many else ():
        places = [position + SPREAD * (2 * i / (len(good) - 1) - 1) for i in range(len(good))]
        dots = [value(one.answers[way]) for one in good]
        axes.scatter(places, dots, s=12, color="black", alpha=0.5, zorder=3)
    labels = [form.format(height) for height in heights]
    axes.bar_label(bars, labels, label_type="center" if many else "edge", color="white" if many else "black")
    axes.margins(y=0.12)
    axes.set_title(name)
    plain(axes)


def _gain(axes: Axes, good: Sequence[Compared]) -> None:
    """A dot for each prompt, and a diamond for all together."""
    whole = together(good)
    for way in (Decoding.MEDUSA, Decoding.AUTO):
        style: dict[str, Any] = {"color": COLOURS[way]}
        if len(good) > 1:
            axes.scatter(*_points(good, way), s=16, alpha=0.6, **style)
        places, ups = _points([whole], way)
        label = f"{way.value}: {ups[0]:.2f}x" if ups else way.value
        axes.scatter(places, ups, s=80, marker="D", edgecolor="black", label=label, **style)
    axes.axhline(1.0, color=COLOURS[Decoding.NORMAL], linestyle="--", label="normal")
    axes.set_xlim(-5, 105)
    axes.set_xlabel("draft tokens accepted (%)")
    axes.set_ylabel("speed-up")
    axes.set_title("Acceptance and speed-up")
    axes.set_ymargin(0.3)  # room for the legend, where high gains at low acceptance would be
    axes.legend(frameon=False, loc="upper left")
    plain(axes)


def _points(compared: Sequence[Compared], way: Decoding) -> tuple[list[float], list[float]]:
    """(acceptance in percent, speed-up). What drafted nothing stands at 0."""
    ups = [(one, one.speed_up(way)) for one in compared]
    found = [(100 * (one.answers[way].acceptance or 0.0), up) for one, up in ups if up is not None]
    return [place for place, _ in found], [up for _, up in found]


def plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
