"""What is said when a run has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.progress import duration
from cli.tally import Tally

TOP_CODES = 3


@dataclass(frozen=True)
class Outcome:
    """whole counts the results file, session what this command added to it in session_s seconds."""

    results: Path
    whole: Tally
    session: Tally
    session_s: float
    occupancy: float | None

    def text(self) -> str:
        whole, session = self.whole, self.session
        rows = [("requests", f"{whole.requests:,}")]
        if session.requests != whole.requests:
            rows.append(("in this session", f"{session.requests:,}"))
        rows += [
            ("failures", _failures(whole)),
            ("prompt tokens", f"{whole.prompt_tokens:,}"),
            ("generated tokens", f"{whole.generated_tokens:,}"),
        ]
        if self.session_s > 0 and session.generated_tokens:
            rows.append(("tokens/s", f"{session.generated_tokens / self.session_s:.1f}"))
        if whole.tokens_per_step is not None:
            rows.append(("tokens/step", f"{whole.tokens_per_step:.2f}"))
        if self.occupancy is not None:
            rows.append(("batch occupancy", f"{self.occupancy:.0%}"))
        if whole.prompt_tokens:
            rows.append(("prefix hit rate", f"{whole.cached_tokens / whole.prompt_tokens:.0%}"))
        rows += [("wall time", duration(self.session_s)), ("results", str(self.results))]
        return "\n".join(f"{name:<18}{value}" for name, value in rows)


def _failures(tally: Tally) -> str:
    if not tally.failed:
        return "0"
    codes = ", ".join(f"{code} {count:,}" for code, count in tally.failures.most_common(TOP_CODES))
    more = ", ..." if len(tally.failures) > TOP_CODES else ""
    return f"{tally.failed:,} ({codes}{more})"
