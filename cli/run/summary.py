"""The summary of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.output import preview
from cli.run import result_lines
from cli.run.totals import Totals
from cli.views.progress import duration

TOP_CODES = 3


@dataclass(frozen=True)
class SessionSummary:
    """The requests and tokens of one session. occupancy: None if unknown.

    starting_s: time to start a local stack; None if a running gateway was used.
    """

    requests: int
    tokens: int
    seconds: float
    occupancy: float | None
    starting_s: float | None


@dataclass(frozen=True)
class Outcome:
    """whole: totals of the results file. session: those of this command.

    answers: columns of the answers in a table of results; None if these are lines of batch output.
    overruled: lines whose own max_tokens stood against --max-tokens. expected: how many rows were answered as
    the table says; empty if it does not.
    """

    results: Path
    whole: Totals
    session: SessionSummary
    answers: Sequence[str] | None = None
    overruled: int = 0
    expected: str = ""

    def beginnings(self, count: int) -> Iterator[str]:
        """The starts of the first answers. Raises CliError."""
        if self.answers is None:
            return result_lines.beginnings(self.results, count)
        return preview.beginnings(self.results, self.answers, count)

    def text(self) -> str:
        whole, session = self.whole, self.session
        rows = [("requests", f"{whole.requests:,}")]
        if session.requests != whole.requests:
            rows.append(("in this session", f"{session.requests:,}"))
        rows.append(("failures", _failures(whole)))
        if self.expected:
            rows.append(("as expected", self.expected))
        rows += [(how, f"{count:,}") for how, count in sorted(whole.stopped.items())]
        if whole.cut:
            rows.append(("cut by max_tokens", f"{whole.cut:,}"))
        if self.overruled:
            rows.append(("own max_tokens", f"{self.overruled:,} lines, whose number stood"))
        rows += [
            ("prompt tokens", f"{whole.prompt_tokens:,}"),
            ("generated tokens", f"{whole.generated_tokens:,}"),
        ]
        if session.seconds > 0 and session.tokens:
            rows.append(("tokens/s", f"{session.tokens / session.seconds:.1f}"))
        if whole.tokens_per_step is not None:
            rows.append(("tokens/step", f"{whole.tokens_per_step:.2f}"))
        if session.occupancy is not None:
            rows.append(("batch occupancy", f"{session.occupancy:.0%}"))
        if whole.prompt_tokens:
            rows.append(("prefix hit rate", f"{whole.cached_tokens / whole.prompt_tokens:.0%}"))
        rows += [("wall time", _wall_time(session)), ("results", str(self.results))]
        return "\n".join(f"{name:<18}{value}" for name, value in rows)


def _wall_time(session: SessionSummary) -> str:
    if session.starting_s is None:
        return duration(session.seconds)
    parts = f"starting {duration(session.starting_s)}, answering {duration(session.seconds)}"
    return f"{duration(session.starting_s + session.seconds)} ({parts})"


def _failures(tally: Totals) -> str:
    if not tally.failed:
        return "0"
    codes = ", ".join(f"{code} {count:,}" for code, count in tally.failures.most_common(TOP_CODES))
    more = ", ..." if len(tally.failures) > TOP_CODES else ""
    return f"{tally.failed:,} ({codes}{more})"
