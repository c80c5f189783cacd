"""Batches as text and as a table."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.table import Table

from cli.base.units import date_and_time
from cli.views.progress import duration
from cli.views.time_left import Progress
from tasks.records.batch import BatchStatus

SHOWN_ERRORS = 5
STOPPED = ("cancelled", "expired")  # what lines are that neither ended nor failed
ENDS = ("completed_at", "failed_at", "expired_at", "cancelled_at")


def table(batches: Sequence[Mapping[str, Any]]) -> Table:
    """A table with one row per batch."""
    rows = Table("id", "status", "age", "took", "done", "failed", "tokens", box=None, pad_edge=False)
    rows.columns[0].no_wrap = True
    for batch in batches:
        counts = batch["request_counts"]
        rows.add_row(
            batch["id"],
            batch["status"],
            duration(max(0.0, time.time() - batch["created_at"])),
            _took(batch),
            f"{counts['completed'] + counts['failed']:,} of {counts['total']:,}",
            f"{counts['failed']:,}",
            f"{batch['usage']['output_tokens']:,}",
        )
    return rows


def details(batch: Mapping[str, Any], gone: Collection[str] = ()) -> str:
    """All details of a batch. gone: ids of its files that the gateway no longer has."""
    counts, usage, now = batch["request_counts"], batch["usage"], progress_of(batch)
    ended = sum(counts[how] for how in ("completed", "failed", *STOPPED))
    never_sent = counts["total"] - ended if batch["status"] == BatchStatus.FAILED else 0
    cut = batch["cut_by_max_tokens"]

    def file(name: str) -> str:
        return f"{batch[name]} (deleted)" if batch[name] in gone else batch[name] or "-"

    cached = usage["input_tokens_details"]["cached_tokens"]
    rows = [
        ("id", batch["id"]),
        ("status", batch["status"] + (", a dry run" if batch["dry_run"] else "")),
        ("endpoint", batch["endpoint"]),
        ("lines", f"{counts['total']:,}"),
        ("done", f"{counts['completed']:,}"),
        ("failed", f"{counts['failed']:,}"),
        *([("running", f"{now.running:,}, {now.running_tokens:,} tokens so far")] if now.running else []),
        *[(how, f"{counts[how]:,}") for how in STOPPED if counts[how]],
        *([("never sent", f"{never_sent:,}")] if never_sent else []),
        *([("cut", f"{cut:,} by max_tokens")] if cut else []),
        ("tokens", f"{usage['input_tokens']:,} in ({cached:,} cached), {usage['output_tokens']:,} out"),
        ("created", date_and_time(batch["created_at"])),
        ("took", _took(batch)),
        ("expires", date_and_time(batch["expires_at"])),
        ("priority", str(batch["priority"])),
        ("input file", file("input_file_id")),
        ("output file", file("output_file_id")),
        ("error file", file("error_file_id")),
    ]
    if batch["retry_of"] is not None:
        rows.append(("retry of", batch["retry_of"]))
    if batch["max_tokens"] is not None:
        rows.append(("max_tokens", str(batch["max_tokens"])))
    rows += [(f"metadata {key}", value) for key, value in batch["metadata"].items()]
    rows += [("failures", f"{top['count']:,} {top['code']}") for top in batch["top_errors"]]
    errors = (batch["errors"] or {}).get("data") or []
    for error in errors[:SHOWN_ERRORS]:
        rows.append(("" if error["line"] is None else f"line {error['line']}", error["message"]))
    if len(errors) > SHOWN_ERRORS:
        rows.append(("", "more: medusaq batches download ID --errors FILE"))
    return "\n".join(f"{name:<15}{value}" for name, value in rows)


def progress_of(batch: Mapping[str, Any]) -> Progress:
    counts, running = (
        batch["request_counts"],
        batch.get("running") or {},
    )  # an earlier release does not tell it
    return Progress(
        counts["completed"] + counts["failed"],
        counts["failed"],
        batch["usage"]["output_tokens"],
        running.get("lines", 0),
        running.get("output_tokens", 0),
    )


def _took(batch: Mapping[str, Any]) -> str:
    ended = next((batch[name] for name in ENDS if batch[name] is not None), None)
    return duration(max(0.0, (ended or time.time()) - batch["created_at"]))
