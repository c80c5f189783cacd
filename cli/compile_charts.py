"""The four charts of a compilation: speed in bulk and alone, divergence, and T(n)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from cli.charts import DPI, SIZE, plain
from compiling.compiled import Compiled
from compiling.speed import SLOTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY, BLUE, ORANGE = "#8c8c8c", "#0072b2", "#d55e00"
LEAST_KL = 1e-7  # where a logarithmic axis shows 0


def draw(compiled: Compiled, title: str) -> bytes:
    """PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    figure.suptitle(title, parse_math=False)
    bulk, alone, divergence, times = figure.subplots(2, 2).flat
    speeds = [row.speed for row in compiled.rows]
    _bars(bulk, compiled, f"Tokens a second, {SLOTS} requests", [one.bulk_per_s for one in speeds], "{:.0f}")
    _bars(alone, compiled, "Tokens a second, one request", [one.alone_per_s for one in speeds], "{:.0f}")
    _bars(
        divergence,
        compiled,
        "KL divergence from the source, nats a token",
        [max(LEAST_KL, row.quality.kl) for row in compiled.rows],
        "{:.1e}",
    )
    divergence.set_xscale("log")
    divergence.axvline(compiled.options.max_kl, color=ORANGE, linestyle="--")
    for row, speed in zip(compiled.rows, speeds, strict=True):
        best = row.type == compiled.recommendation.type
        times.plot(
            list(speed.row_s),
            [seconds * 1e3 for seconds in speed.row_s.values()],
            marker="o",
            markersize=3,
            label=row.type,
            linewidth=2.5 if best else 1.0,
        )
    times.set_title("T(n): milliseconds of a call of n rows")
    times.set_xlabel("n")
    times.set_ylim(bottom=0)
    times.legend(frameon=False)
    plain(times)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _bars(axes: Axes, compiled: Compiled, name: str, lengths: list[float], form: str) -> None:
    types = [row.type for row in compiled.rows]
    colours = [BLUE if type == compiled.recommendation.type else GREY for type in types]
    bars = axes.barh(types, lengths, color=colours)
    axes.bar_label(bars, [form.format(length) for length in lengths], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_title(name)
    plain(axes)
