"""`medusaq submit`, `status`, `cancel` and `jobs`, against a running gateway."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.errors import EXIT_FAILURE, BadInput
from cli.base.units import date_and_time
from cli.gateway.options import DEFAULT_URL, JsonOption, UrlOption, WebhookOption, ask, path_to, print_list
from cli.gateway.request_options import (
    AcceptanceOption,
    DecodingOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TopPOption,
)
from tasks.records.job import TERMINAL, Priority, Status, preview, result_line

if TYPE_CHECKING:
    from rich.table import Table

WAIT_S = 30  # of one long poll

SUBMIT_EPILOG = """[bold]Examples[/]

medusaq submit "Why is the sky blue?" --wait --max-tokens 64

medusaq submit - --url http://127.0.0.1:7860 < prompt.txt"""

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Job id, as printed by `medusaq submit`.")]


def submit(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.")],
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end and print the text.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the prompt without a chat template.")] = False,
    model: Annotated[str | None, typer.Option(help="Name of a served model. (default: any)")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of the answer. (default: 256)")] = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    decoding: DecodingOption = None,
    acceptance: AcceptanceOption = None,
    priority: Annotated[Priority, typer.Option()] = Priority.INTERACTIVE,
    webhook: WebhookOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Submit one prompt. Prints the job id, or with --wait the answer."""
    text = _read_stdin() if prompt == "-" else prompt
    if system is not None and raw:
        raise BadInput("--system needs the chat template, which --raw turns off: give only one of them")
    body: dict[str, Any] = {"prompt": text, "priority": priority.value}
    if system is not None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        body = {"messages": messages, "priority": priority.value}
    given = {
        "raw": raw or None,
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or None,
        "decoding": decoding,
        "acceptance": acceptance,
        "webhook": None if webhook is None else {"url": webhook},
    }
    body |= {name: value for name, value in given.items() if value is not None}
    record = ask(url, "POST", "/v1/jobs", wait_s=WAIT_S if wait else 0, json=body)
    if not wait:
        _show(record, as_json, record["id"])
        return
    try:
        while record["status"] not in TERMINAL:
            record = ask(url, "GET", f"/v1/jobs/{record['id']}", wait_s=WAIT_S)
    except KeyboardInterrupt:
        print(f"the job continues: medusaq status {record['id']}", file=sys.stderr)
        raise
    _show(record, as_json, record["result"]["text"] if record["result"] else "")
    if record["result"] and not as_json:
        print(result_line(record["result"]), file=sys.stderr)
    if record["status"] != Status.SUCCEEDED:
        print(f"error: job {record['id']} {_end(record)}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILURE)


def status(job_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show one job."""
    record = ask(url, "GET", path_to("jobs", job_id))
    _show(record, as_json, _details(record))


def cancel(job_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Cancel a job: at once while it is queued, within about a second while it runs."""
    record = ask(url, "POST", path_to("jobs", job_id) + "/cancel")
    texts = {"cancelled": "cancelled", "running": "cancelling", "queued": "cancelling"}
    _show(record, as_json, texts.get(record["status"], f"already ended: {record['status']}"))


def jobs(
    status: Annotated[Status | None, typer.Option(help="Only jobs of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most jobs to list.")] = 20,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first."""
    params: dict[str, Any] = {"limit": limit} | ({"status": status.value} if status else {})
    listing = ask(url, "GET", "/v1/jobs", params=params)
    if as_json:
        typer.echo(json.dumps(listing, ensure_ascii=False))
    elif listing["data"]:
        print_list(_table(listing["data"]), listing["has_more"], "--limit, --status")
    else:
        typer.echo("no jobs")


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8, at byte {error.start}") from None


def _show(record: Mapping[str, Any], as_json: bool, text: str) -> None:
    typer.echo(json.dumps(record, ensure_ascii=False) if as_json else text)


def _end(record: Mapping[str, Any]) -> str:
    return f"{record['status']}: {_reason(record)}" if record["error"] else str(record["status"])


def _reason(record: Mapping[str, Any]) -> str:
    """Why a job failed; "" for one that did not."""
    error = record["error"]
    return f"{error['code']}: {' '.join(error['message'].split())}" if error else ""


def _details(record: Mapping[str, Any]) -> str:
    rows = [
        ("id", record["id"]),
        ("status", _end(record)),
        ("priority", record["priority"]),
        ("model", record["model"] or "any"),
        ("prompt", preview(record["request"])),
        ("created", date_and_time(record["created_at"])),
        ("started", date_and_time(record["started_at"])),
        ("finished", date_and_time(record["finished_at"])),
        ("attempts", record["attempts"]),
        ("worker", record["worker"] or "-"),
    ]
    rows += [(f"metadata {key}", value) for key, value in record["metadata"].items()]
    result = record["result"]
    if result is not None:
        rows += [
            ("tokens", _tokens(record)),
            *_speculation(result),
            ("finish reason", result["finish_reason"]),
        ]
    lines = [f"{name:<15}{value}" for name, value in rows]
    return "\n".join(lines if result is None else [*lines, "", result["text"]])


def _speculation(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on speculation; none for results of older workers."""
    if (speculation := result.get("speculation")) is None:
        return []
    rows = [("steps", str(speculation["steps"])), ("tokens/step", f"{speculation['tokens_per_step']:.2f}")]
    for name, drafts in speculation["sources"].items():
        rows.append((f"{name} drafts", f"{drafts['accepted']} of {drafts['verified']} accepted"))
    return rows


def _table(records: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    reasons = ["reason"] if any(record["error"] for record in records) else []
    table = Table("id", "status", "age", "took", "tokens", *reasons, "prompt", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for record in records:
        texts = [_reason(record)] * len(reasons) + [preview(record["request"])]
        table.add_row(
            record["id"],
            record["status"],
            _age(record["created_at"]),
            _took(record),
            _tokens(record),
            *(Text(text, no_wrap=True, overflow="ellipsis") for text in texts),
        )
    return table


def _tokens(record: Mapping[str, Any]) -> str:
    if record["result"] is None:
        return "-"
    usage = record["result"]["usage"]
    return f"{usage['prompt_tokens']}+{usage['completion_tokens']}"


def _took(record: Mapping[str, Any]) -> str:
    from cli.views.progress import duration

    if record["started_at"] is None:
        return "-"
    return duration((record["finished_at"] or time.time()) - record["started_at"])


def _age(created_at: float) -> str:
    from cli.views.progress import duration

    return duration(max(0.0, time.time() - created_at))
