"""`medusaq batches`: files of OpenAI batch lines, against a running gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client import answer, call, check_url, transfer
from cli.errors import EXIT_FAILURE, BadInput
from cli.job_commands import DEFAULT_URL, JsonOption, UrlOption
from tasks.batch import ENDED, BatchStatus

POLL_S = 1.0
READ_BYTES = 1024 * 1024
ENDPOINT = "/v1/chat/completions"

CREATE_EPILOG = """[bold]Examples[/]

medusaq batches create lines.jsonl --watch -o results.jsonl

medusaq batches create lines.jsonl --dry-run --watch

medusaq batches create night.jsonl --deadline-hours 8 --priority 5"""

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="As `medusaq batches create` printed it.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show live progress until it has ended.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write good answers here, in input order."),
]
ErrorsOption = Annotated[
    Path | None, typer.Option("--errors", metavar="FILE", help="Write lines that failed here.")
]

batches = typer.Typer(help="Files of OpenAI batch lines, run by a gateway.", no_args_is_help=True)


@batches.command(epilog=CREATE_EPILOG)
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="OpenAI batch lines, JSON each.")],
    endpoint: Annotated[str, typer.Option(help="That of all lines.")] = "",
    priority: Annotated[int, typer.Option(min=-100, max=100, help="The higher goes first.")] = 0,
    deadline_hours: Annotated[
        float | None, typer.Option(help="What has not run by then expires. (default: 24)")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate, and send nothing.")] = False,
    watch: WatchOption = False,
    output: OutOption = None,
    errors: ErrorsOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Upload a file and run it: prints the batch's id."""
    url = check_url(url)
    if not file.is_file():
        raise BadInput(f"{file} is no file")
    uploaded = _upload(url, file)
    body: dict[str, Any] = {
        "input_file_id": uploaded["id"],
        "endpoint": endpoint or _endpoint_of(file),
        "completion_window": "24h",
        "priority": priority,
        "dry_run": dry_run,
    }
    if deadline_hours is not None:
        body["deadline"] = time.time() + deadline_hours * 3600
    batch = call(url, "POST", "/v1/batches", json=body)
    if not (watch or output or errors):
        typer.echo(json.dumps(batch) if as_json else batch["id"])
        return
    _end(url, _watched(url, batch), output, errors, as_json)


@batches.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """The newest first."""
    listing = call(check_url(url), "GET", "/v1/batches", params={"limit": limit})
    if as_json:
        typer.echo(json.dumps(listing, ensure_ascii=False))
        return
    for batch in listing["data"]:
        created = datetime.fromtimestamp(batch["created_at"]).strftime("%Y-%m-%d %H:%M")
        typer.echo(f"{batch['id']}  {batch['status']:<11}  {created}  {_counts(batch)}")
    if not listing["data"]:
        typer.echo("no batches")
    elif listing["has_more"]:
        typer.echo("there are more: --limit")


@batches.command()
def show(
    batch_id: IdArgument,
    watch: WatchOption = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """One batch: where it stands, what it took, why lines failed."""
    url = check_url(url)
    batch = call(url, "GET", f"/v1/batches/{batch_id}")
    if watch:
        batch = _watched(url, batch)
    typer.echo(json.dumps(batch, ensure_ascii=False) if as_json else _details(batch))


@batches.command()
def cancel(batch_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Send nothing more of it and break off what runs; what has ended is kept."""
    batch = call(check_url(url), "POST", f"/v1/batches/{batch_id}/cancel")
    typer.echo(json.dumps(batch) if as_json else batch["status"])


@batches.command()
def retry(
    batch_id: IdArgument,
    watch: WatchOption = False,
    output: OutOption = None,
    errors: ErrorsOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Run the lines that failed again, as a new batch: prints its id."""
    url = check_url(url)
    batch = call(url, "POST", f"/v1/batches/{batch_id}/retry")
    if not (watch or output or errors):
        typer.echo(json.dumps(batch) if as_json else batch["id"])
        return
    _end(url, _watched(url, batch), output, errors, as_json)


@batches.command()
def download(
    batch_id: IdArgument,
    output: OutOption = None,
    errors: ErrorsOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Write the results, of a running batch those so far; to stdout unless -o or --errors name a file."""
    url = check_url(url)
    call(url, "GET", f"/v1/batches/{batch_id}")  # a clear refusal, before a file is made
    if output is None and errors is None:
        with transfer(url, "GET", f"/v1/batches/{batch_id}/output") as response:
            for chunk in response.iter_bytes():
                typer.echo(chunk, nl=False)
        return
    _download(url, batch_id, output, errors)


def _upload(url: str, file: Path) -> Any:
    with file.open("rb") as content:
        parts = {"data": {"purpose": "batch"}, "files": {"file": (file.name, content)}}
        with transfer(url, "POST", "/v1/files", **parts) as response:
            response.read()
            return answer(response)


def _endpoint_of(file: Path) -> str:
    """What the first line says; the gateway checks it, and all others."""
    with file.open("rb") as lines:
        try:
            return str(json.loads(lines.readline())["url"])
        except (ValueError, KeyError, TypeError):
            return ENDPOINT


def _watched(url: str, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch once it has ended."""
    from rich.console import Console

    from cli.progress import Display

    display: Display | None = None
    while batch["status"] not in ENDED:
        counts = batch["request_counts"]
        if display is None and batch["status"] != BatchStatus.VALIDATING:
            display = Display(Console(stderr=True), counts["total"], 0, enabled=True)
            display.__enter__()
        if display is not None:
            done = counts["completed"] + counts["failed"]
            display.update(done, counts["failed"], batch["usage"]["output_tokens"], None)
        time.sleep(POLL_S)
        batch = call(url, "GET", f"/v1/batches/{batch['id']}")
    if display is not None:
        display.__exit__(None, None, None)
    return batch


def _end(url: str, batch: Mapping[str, Any], output: Path | None, errors: Path | None, as_json: bool) -> None:
    _download(url, batch["id"], output, errors)
    typer.echo(json.dumps(batch, ensure_ascii=False) if as_json else _details(batch))
    if batch["status"] != BatchStatus.COMPLETED:
        raise typer.Exit(EXIT_FAILURE)


def _download(url: str, batch_id: str, output: Path | None, errors: Path | None) -> None:
    for path, kind in ((output, "output"), (errors, "errors")):
        if path is None:
            continue
        with transfer(url, "GET", f"/v1/batches/{batch_id}/{kind}") as response, path.open("wb") as out:
            for chunk in response.iter_bytes(READ_BYTES):
                out.write(chunk)


def _counts(batch: Mapping[str, Any]) -> str:
    counts = batch["request_counts"]
    failed = f", {counts['failed']:,} failed" if counts["failed"] else ""
    return f"{counts['completed']:,} of {counts['total']:,}{failed}"


def _details(batch: Mapping[str, Any]) -> str:
    usage = batch["usage"]
    rows = [
        ("id", batch["id"]),
        ("status", batch["status"]),
        ("lines", _counts(batch)),
        ("tokens", f"{usage['input_tokens']:,} in, {usage['output_tokens']:,} out"),
        ("input file", batch["input_file_id"]),
        ("output file", batch["output_file_id"] or "-"),
        ("error file", batch["error_file_id"] or "-"),
    ]
    rows += [("failures", f"{top['count']:,} {top['code']}") for top in batch["top_errors"]]
    for error in ((batch["errors"] or {}).get("data") or [])[:3]:
        where = f"line {error['line']}: " if error["line"] else ""
        rows.append(("invalid", f"{where}{error['message']}"))
    return "\n".join(f"{name:<13}{value}" for name, value in rows)
