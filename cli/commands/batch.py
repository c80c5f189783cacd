"""`medusaq batches`: create and inspect batches at a running gateway."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.base.errors import EXIT_FAILURE, BadInput
from cli.base.output_files import check_writable
from cli.base.plain_help import App
from cli.gateway.options import DEFAULT_URL, JsonOption, UrlOption, WebhookOption, ask, path_to, print_list
from tasks.records.batch import MAX_PRIORITY
from tasks.records.endpoints import CHAT, ENDPOINTS, JOBS

HOUR_S = 3600
NOT_FOUND = 404

CREATE_EPILOG = """[bold]Examples[/]

medusaq batches create lines.jsonl --watch -o answers.jsonl --errors failed.jsonl

medusaq batches create lines.jsonl --dry-run

medusaq batches create night.jsonl --deadline-hours 8 --priority 5

Each line of FILE is {"custom_id", "method": "POST", "url", "body"}, or a request as `medusaq run` takes it:
{"prompt": ...} or {"messages": [...]}. The batch also continues if this command
ends. [bold]medusaq run[/] also accepts plain prompts, and writes answers and failures to one file.

Exit codes: 0 done, 1 some lines failed, 2 bad input, 4 no gateway, 130 Ctrl-C."""

SHOW_EPILOG = """[bold]Examples[/]

medusaq batches show batch_8e8f

medusaq batches show batch_8e8f --watch"""

RETRY_EPILOG = """[bold]Examples[/]

medusaq batches retry batch_8e8f --watch -o more.jsonl --errors still-failed.jsonl

medusaq batches retry batch_8e8f --max-tokens 512

The lines are run as they are: an invalid one fails again, and so does one whose JSON was cut off
(incomplete), unless --max-tokens is higher."""

DOWNLOAD_EPILOG = """[bold]Examples[/]

medusaq batches download batch_8e8f -o answers.jsonl --errors failed.jsonl

medusaq batches download batch_8e8f | head"""

LIST_EPILOG = """[bold]Examples[/]

medusaq batches list --limit 5

medusaq batches list --json | jq -r '.data[].id'"""

CANCEL_EPILOG = """[bold]Examples[/]

medusaq batches cancel batch_8e8f"""

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Batch id, as printed by `medusaq batches create`.")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the batch ends.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write successful answers here, in input order; waits for the end.",
    ),
]
ErrorsOption = Annotated[
    Path | None, typer.Option("--errors", metavar="FILE", help="Write failed lines here; waits for the end.")
]

batches = App(help="Create and inspect batches at a gateway.")


@batches.command(epilog=CREATE_EPILOG)
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="jsonl file of requests.")],
    endpoint: Annotated[
        str | None, typer.Option(help=f"{', '.join(ENDPOINTS)}. (default: the first line's url, or /v1/jobs)")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=-MAX_PRIORITY, max=MAX_PRIORITY, help="Batches of higher priority run first.")
    ] = 0,
    deadline_hours: Annotated[
        float | None,
        typer.Option(metavar="HOURS", help="Lines that have not run by then expire. (default: 24)"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of all lines, in place of theirs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only validate the lines; run none.")] = False,
    webhook: WebhookOption = None,
    watch: WatchOption = False,
    output: OutputOption = None,
    errors: ErrorsOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Upload a file and run it as a batch. Prints the batch id."""
    from tables.base.kinds import is_table

    _check_outputs(output, errors, file)
    if is_table(file.name):
        raise BadInput(f"{file} is a table: `medusaq run` sends a prompt for each of its rows")
    body: dict[str, Any] = {
        "endpoint": endpoint or _endpoint_of(file),
        "completion_window": "24h",
        "priority": priority,
        "dry_run": dry_run,
    }
    if model is not None:
        body["model"] = model
    if webhook is not None:
        body["webhook"] = {"url": webhook}
    if deadline_hours is not None:
        body["deadline"] = time.time() + deadline_hours * HOUR_S
    from cli.views.batch_transfer import upload

    body["input_file_id"] = upload(url, file)["id"]
    batch = ask(url, "POST", "/v1/batches", json=body)
    _after(url, batch, watch or dry_run, output, errors, as_json)


@batches.command("list", epilog=LIST_EPILOG)
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most batches to list.")] = 20,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List batches, the newest first."""
    listing = ask(url, "GET", "/v1/batches", params={"limit": limit})
    if as_json:
        typer.echo(json.dumps(listing, ensure_ascii=False))
    elif listing["data"]:
        from cli.views.batch_views import table

        print_list(table(listing["data"]), listing["has_more"], "--limit")
    else:
        typer.echo("no batches")


@batches.command(epilog=SHOW_EPILOG)
def show(
    batch_id: IdArgument,
    watch: WatchOption = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show one batch: its status, times, counts and errors."""
    batch = ask(url, "GET", path_to("batches", batch_id))
    if watch:
        batch = _watched(url, batch)
    _print(url, batch, as_json)


@batches.command(epilog=CANCEL_EPILOG)
def cancel(batch_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Cancel a batch: running lines are stopped, and results so far are kept."""
    batch = ask(url, "POST", path_to("batches", batch_id) + "/cancel")
    texts = {"cancelled": "cancelled", "cancelling": "cancelling"}
    text = texts.get(batch["status"], f"already ended: {batch['status']}")
    typer.echo(json.dumps(batch, ensure_ascii=False) if as_json else text)


@batches.command(epilog=RETRY_EPILOG)
def retry(
    batch_id: IdArgument,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of each answer, in place of the lines' own.")
    ] = None,
    watch: WatchOption = False,
    output: OutputOption = None,
    errors: ErrorsOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Run the failed lines of a batch again, as a new batch. Prints its id."""
    _check_outputs(output, errors)
    batch = ask(url, "POST", path_to("batches", batch_id) + "/retry", json={"max_tokens": max_tokens})
    _after(url, batch, watch, output, errors, as_json)


@batches.command(epilog=DOWNLOAD_EPILOG)
def download(
    batch_id: IdArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write successful answers here, in input order. (default: stdout)",
        ),
    ] = None,
    errors: Annotated[Path | None, typer.Option(metavar="FILE", help="Write failed lines here.")] = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Download the results; of a running batch, those so far."""
    from cli.views.batch_transfer import fetch, fetch_to_stdout

    _check_outputs(output, errors)
    where = path_to("batches", batch_id)
    if output is None and errors is None:
        fetch_to_stdout(url, f"{where}/output")
        return
    fetch(url, where, output, errors)


def _check_outputs(output: Path | None, errors: Path | None, file: Path | None = None) -> None:
    """file: the one to upload."""
    for option, path, reads in (("-o", output, (file,)), ("--errors", errors, (file, output))):
        if path is not None:
            check_writable(option, path, reads)


def _endpoint_of(file: Path) -> str:
    """The url of the first line, by default that of jobs; the gateway validates it. Raises BadInput."""
    try:
        with file.open("rb") as lines:
            return str(json.loads(lines.readline().decode("utf-8-sig")).get("url", JOBS))
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, AttributeError):
        return CHAT


def _after(
    url: str, batch: dict[str, Any], watch: bool, output: Path | None, errors: Path | None, as_json: bool
) -> None:
    """Print the id of a new batch, or wait for its end and fetch its results."""
    if not (watch or output or errors):
        typer.echo(json.dumps(batch, ensure_ascii=False) if as_json else batch["id"])
        return
    from cli.views.batch_transfer import fetch

    batch = _watched(url, batch)
    fetch(url, path_to("batches", batch["id"]), output, errors)
    _print(url, batch, as_json)
    if batch["status"] != "completed" or batch["request_counts"]["failed"]:
        raise typer.Exit(EXIT_FAILURE)


def _watched(url: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Wait with a progress display, and return the ended batch."""
    from cli.views.batch_watch import watch

    return watch(url, batch)


def _print(url: str, batch: dict[str, Any], as_json: bool) -> None:
    from cli.views.batch_views import details

    typer.echo(json.dumps(batch, ensure_ascii=False) if as_json else details(batch, _gone(url, batch)))


def _gone(url: str, batch: dict[str, Any]) -> list[str]:
    """Its files that were deleted or have expired: `medusaq run` deletes those of its batches at the end."""
    from medusaq.errors import GatewayError

    gone = []
    for name in ("input_file_id", "output_file_id", "error_file_id"):
        if (file_id := batch[name]) is not None:
            try:
                ask(url, "GET", path_to("files", file_id))
            except GatewayError as error:
                if error.status != NOT_FOUND:
                    raise
                gone.append(file_id)
    return gone
