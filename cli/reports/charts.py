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
SIZE = (10.0, 7.5)  # inches, of four charts
DPI = 150
SPREAD = 0.25  # of the dots of single values over a bar's thickness


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
        axes.set_ylim(bottom=0)
        # Beside the axes: inside, it would cover points of some chart wherever it is.
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0)


def check_installed() -> None:
    """Raise CliError, before the work begins, if the packages for charts and pages are not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise CliError(f"charts need {error.name or 'matplotlib'}: pip install 'medusaq[charts]'") from None


def draw(title: str, charts: Sequence[Bars | Lines]) -> bytes:
    """PNG of four charts."""
    out = io.BytesIO()
    figure(title, charts).savefig(out, format="png")
    return out.getvalue()


def figure(title: str, charts: Sequence[Bars | Lines]) -> Figure:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    drawn.suptitle(title, parse_math=False)
    for axes, chart in zip(drawn.subplots(2, 2).flat, charts, strict=True):
        chart.draw(axes)
        axes.set_title(chart.title)
        axes.spines[["top", "right"]].set_visible(False)
    return drawn
