"""Renders a snapshot of the system for the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.processes.restart_backoff import Restart, clock
from cli.views.model_states import FAILED, UNSERVED, ModelState
from cli.views.progress import duration
from cli.views.snapshot import PRIORITIES, Snapshot, Speeds, done
from common.units import size

NARROW = 80  # columns; narrower tables omit less important columns
MOST_WINDOWS = 8  # that are shown
SHORT_ID = len("batch_0123456")  # characters of a batch's id


def view(
    console: Console,
    url: str,
    snapshot: Snapshot,
    speeds: Speeds,
    last_error: str | None,
    models: Sequence[ModelState] = (),
    restarts: Sequence[Restart] = (),
) -> RenderableType:
    """trouble: why this picture is not of now. models: of this picture. restarts: of a stack nearby."""
    wide = console.width >= NARROW
    parts: list[RenderableType] = [_head(url, snapshot, last_error, models, restarts)]
    parts += [Text(), _restarts(restarts, wide)] if restarts else []
    if snapshot.redis_up:
        parts += [Text(), _queues(snapshot, speeds)]
        parts += [Text(), _models(models, wide)] if models else []
        parts += [Text(), _workers(snapshot, wide)]
        if snapshot.batches:
            parts += [Text(), _batches(snapshot, speeds, wide)]
        if snapshot.windows:
            parts += [Text(), _windows(snapshot, wide)]
    return Group(*parts)


def _head(
    url: str,
    snapshot: Snapshot,
    last_error: str | None,
    models: Sequence[ModelState],
    restarts: Sequence[Restart],
) -> Text:
    resting = next((one.status_line(time.time()) for one in restarts if one.next_start is not None), None)
    wrong = resting or _wrong(snapshot, last_error) or _wrong_with(models)
    line = Text(wrong or "all is well", "bold red" if wrong else "green", no_wrap=True, overflow="ellipsis")
    return line.append(f"  {datetime.now():%H:%M:%S}  {url}", style="default")


def _wrong(snapshot: Snapshot, last_error: str | None) -> str | None:
    if last_error is not None:
        return f"this is old: {last_error}"
    if not snapshot.redis_up:
        return "the gateway cannot reach Redis"
    if not snapshot.workers:
        return "no model worker is alive"
    if not snapshot.value("batches_led"):
        return "no io worker is alive: batches wait"
    return None


def _wrong_with(models: Sequence[ModelState]) -> str | None:
    for model in models:
        if model.state == FAILED:
            return f"{model.name} cannot be loaded, and its jobs fail: medusaq doctor"
        if model.state == UNSERVED:
            return f"jobs wait for {model.name}, which no live worker serves"
    return None


def _restarts(restarts: Sequence[Restart], wide: bool) -> Table:
    table = _table("service", "ends", *(("since", "last") if wide else ()), "next start")
    for one in restarts:
        left = None if one.next_start is None else max(0.0, one.next_start - time.time())
        table.add_row(
            one.service,
            str(one.ends),
            *((clock(one.since), one.reason) if wide else ()),
            "started" if left is None else f"in {duration(left)}",
        )
    return table


def _queues(snapshot: Snapshot, speeds: Speeds) -> Table:
    table = _table("queue", "waiting", "oldest")
    for priority in PRIORITIES:
        waiting = snapshot.value("queue_jobs", priority=priority)
        oldest = snapshot.value("queue_oldest_seconds", priority=priority)
        table.add_row(priority, f"{waiting:,.0f}", duration(oldest) if waiting else "-")
        for model, count in snapshot.waiting_by_model(priority):
            oldest = snapshot.value("model_queue_oldest_seconds", model=model, priority=priority)
            table.add_row(f"  {model}", f"{count:,.0f}", duration(oldest))
    running = snapshot.value("jobs", status="running")
    failed = snapshot.value("jobs_ended_total", status="failed")
    ends = "" if speeds.jobs_per_s is None else f", {speeds.jobs_per_s:.1f} end a second"
    table.caption = f"{running:,.0f} running{ends}, {snapshot.ended:,.0f} ended, {failed:,.0f} failed"
    table.caption_justify = "left"
    return table


def _models(models: Sequence[ModelState], wide: bool) -> Table:
    table = _table("model", "state", "waiting", *(("oldest", "needs") if wide else ()))
    for model in models:
        row = [model.name, model.state, f"{model.waiting:,}"]
        if wide:
            row.append(duration(model.oldest_s) if model.waiting else "-")
            row.append("-" if model.need is None else size(model.need))
        table.add_row(*row)
    return table


def _workers(snapshot: Snapshot, wide: bool) -> Table:
    more = ("tok/step", "occupancy", "KV", "cached") if wide else ()
    table = _table("worker", *(("model",) if wide else ()), "running", "tok/s", *more)
    for model, worker in snapshot.workers:
        m: Mapping[str, float] = worker["metrics"]
        row = [worker["id"], *([model] if wide else [])]
        row += [f"{m.get('running', 0):.0f}/{worker['slots']}", f"{m.get('tokens_per_s', 0):.1f}"]
        if wide:
            kv = m.get("kv_cells_used", 0) / max(1, worker.get("kv_cells", 1))
            row += [f"{m.get('tokens_per_step', 0):.2f}", f"{m.get('batch_occupancy', 0):.0%}", f"{kv:.0%}"]
            row.append(f"{m.get('prefix_hit_rate', 0):.0%}")
        table.add_row(*row)
    total = sum(worker["metrics"].get("tokens_per_s", 0) for _, worker in snapshot.workers)
    table.caption = f"{total:.1f} tokens/s, {snapshot.value('workers', service='io'):.0f} io workers"
    table.caption_justify = "left"
    return table


def _batches(snapshot: Snapshot, speeds: Speeds, wide: bool) -> Table:
    more = ("failed", "lines/s", "left") if wide else ()
    table = _table("batch", "status", "done", *more)
    for batch in snapshot.batches:
        total, ended = batch["request_counts"]["total"], done(batch)
        row: list[Any] = [batch["id"], batch["status"], f"{ended / total:.0%} of {total:,}" if total else "-"]
        if wide:
            speed = speeds.lines_per_s.get(batch["id"])
            left = duration((total - ended) / speed) if speed else "-"
            failed = f"{batch['request_counts']['failed']:,}"
            row += [failed, "-" if speed is None else f"{speed:.1f}", left]
        table.add_row(*row)
    return table


def _windows(snapshot: Snapshot, wide: bool) -> Table:
    """Those that run. The beginning of a batch's id is enough beside the table above."""
    table = _table("window", "ended", *(("worker",) if wide else ()))
    for window in snapshot.windows[:MOST_WINDOWS]:
        batch_id, _, lines = window["lines"].partition(" ")
        counts = window["line_counts"]
        row = [f"{batch_id[:SHORT_ID]}… {lines}", f"{counts['ended']:,} of {counts['total']:,}"]
        table.add_row(*row, *([window["worker"]] if wide else []))
    windows, lines = len(snapshot.windows), sum(one["line_counts"]["total"] for one in snapshot.windows)
    table.caption = f"{windows:,} windows of {lines:,} lines run"
    table.caption_justify = "left"
    return table


def _table(*columns: str) -> Table:
    """A table whose name columns shrink if the terminal is narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        name = index == 0 or column in ("model", "state", "status")
        # Rich takes room from columns that may wrap before it takes any from others.
        justify: Literal["left", "right"] = "left" if name else "right"
        table.add_column(column, justify=justify, no_wrap=not name, overflow="ellipsis")
    return table
