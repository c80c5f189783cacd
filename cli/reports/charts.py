"""Bar charts and line charts, as data and as matplotlib drawings."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.base.errors import CliError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, BLUE, ORANGE = "#8c8c8c", "#0072b2", "#d55e00"
FURTHER = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # the same palette, which the colour-blind see too
SIZE = (10.0, 7.5)  # inches, of four charts
DPI = 150
SPREAD = 0.25  # of the dots of single values over a bar's thickness
LABELLED = 0.14  # of the longest bar: a shorter part has no room for its value


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each name, and form writes its value at it. dots: single values, as many for each bar.

    limit: where a line is drawn.
    """

    title: str
    values: Mapping[str, float]
    form: str
    colours: Sequence[str]
    dots: Sequence[Sequence[float]] = ()
    logarithmic: bool = False
    limit: float | None = None

    def draw(self, axes: Axes) -> None:
        bars = axes.barh([*self.values], [*self.values.values()], color=self.colours, height=0.6)
        for place, dots in enumerate(self.dots):
            spread = [place + SPREAD * (2 * i / max(1, len(dots) - 1) - 1) for i in range(len(dots))]
            axes.scatter(dots, spread, s=12, color="black", alpha=0.5, zorder=3)
        labels = [self.form.format(value) for value in self.values.values()]
        if self.dots:  # an end of a bar is hidden by them
            axes.bar_label(bars, labels, label_type="center", color="white")
        else:
            axes.bar_label(bars, labels, padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.2)
        if self.logarithmic:
            axes.set_xscale("log")
        if self.limit is not None:
            axes.axvline(self.limit, color=ORANGE, linestyle="--")


@dataclass(frozen=True, slots=True)
class Parts:
    """A bar for each name, made of parts: for each label, its length in each bar. form writes lengths."""

    title: str
    names: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    form: str
    colours: Sequence[str]

    def draw(self, axes: Axes) -> None:
        ends = [0.0] * len(self.names)
        longest = max((sum(lengths) for lengths in zip(*self.parts.values(), strict=True)), default=0.0)
        for (label, lengths), colour in zip(self.parts.items(), self.colours, strict=True):
            bars = axes.barh([*self.names], [*lengths], left=ends, label=label, color=colour, height=0.6)
            labels = [self.form.format(one) if one > LABELLED * longest else "" for one in lengths]
            axes.bar_label(bars, labels, label_type="center", color="white")
            ends = [end + one for end, one in zip(ends, lengths, strict=True)]
        for place, end in enumerate(ends):
            whole = self.form.format(end)
            axes.annotate(whole, (end, place), (3, 0), textcoords="offset points", va="center")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.2 * longest or 1)  # room for the whole lengths
        tight = {"columnspacing": 1.0, "handlelength": 1.2, "handletextpad": 0.5}
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, **tight)


@dataclass(frozen=True, slots=True)
class Series:
    """label: in the legend, where there is one. line: of matplotlib, "" for points alone; marker likewise."""

    places: Sequence[float]
    values: Sequence[float]
    label: str = ""
    colour: str | None = None
    line: str = "-"
    width: float = 1.0
    marker: str = ""
    size: float = 3.0


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over a common axis, from 0 upwards."""

    title: str
    x: str
    y: str
    series: Sequence[Series]

    def draw(self, axes: Axes) -> None:
        for one in self.series:
            axes.plot(
                one.places,
                one.values,
                label=one.label or None,
                color=one.colour,
                linestyle=one.line,
                linewidth=one.width,
                marker=one.marker,
                markersize=one.size,
            )
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # so that no marker is cut
        # Beside the axes: inside, it would cover points of some chart wherever it is.
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0)


def check_installed() -> None:
    """Raise CliError, before the work begins, if the packages for charts and pages are not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise CliError(f"charts need {error.name or 'matplotlib'}: pip install 'medusaq[charts]'") from None


Chart = Bars | Parts | Lines


def draw(title: str, charts: Sequence[Chart]) -> bytes:
    """PNG of four charts."""
    out = io.BytesIO()
    figure(title, charts).savefig(out, format="png")
    return out.getvalue()


def figure(title: str, charts: Sequence[Chart]) -> Figure:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    drawn.suptitle(title, parse_math=False)
    for axes, chart in zip(drawn.subplots(2, 2).flat, charts, strict=True):
        chart.draw(axes)
        axes.set_title(chart.title)
        axes.spines[["top", "right"]].set_visible(False)
    return drawn
