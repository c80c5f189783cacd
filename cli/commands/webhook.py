"""`medusaq webhooks`: lists and replays deliveries, and manages the signing secret."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.plain_help import App
from cli.base.units import date_and_time
from cli.gateway.options import DEFAULT_URL, JsonOption, UrlOption, ask, path_to, print_list
from tasks.records.webhook import DeliveryStatus

if TYPE_CHECKING:
    from rich.table import Table

LIST_EPILOG = """[bold]Examples[/]

medusaq webhooks list --status failed

medusaq webhooks list --of batch_8e8f"""

REPLAY_EPILOG = """[bold]Examples[/]

medusaq webhooks replay evt_8e8f

medusaq webhooks list --status failed --json | jq -r '.data[].id' | xargs -n1 medusaq webhooks replay"""

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Delivery id, as shown by `medusaq webhooks list`.")
]

webhooks = App(help="Webhook deliveries and signing secrets.")


@webhooks.command("list", epilog=LIST_EPILOG)
def list_deliveries(
    of: Annotated[
        str | None, typer.Option(metavar="ID", help="Only deliveries of this job or batch.")
    ] = None,
    status: Annotated[DeliveryStatus | None, typer.Option(help="Only deliveries of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most deliveries to list.")] = 20,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List deliveries, the newest first."""
    params: dict[str, Any] = {"limit": limit} | ({"status": status.value} if status else {})
    if of is not None:
        params["batch_id" if of.startswith("batch_") else "job_id"] = of
    listing = ask(url, "GET", "/v1/webhooks/deliveries", params=params)
    if as_json:
        typer.echo(json.dumps(listing, ensure_ascii=False))
    elif listing["data"]:
        print_list(_table(listing["data"]), listing["has_more"], "--limit, --status")
    else:
        typer.echo("no deliveries")


@webhooks.command()
def show(delivery_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show one delivery: its payload and the outcome of each attempt."""
    delivery = ask(url, "GET", path_to("webhooks/deliveries", delivery_id))
    typer.echo(json.dumps(delivery, ensure_ascii=False) if as_json else _details(delivery))


@webhooks.command(epilog=REPLAY_EPILOG)
def replay(delivery_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Send a delivery again now, with the same webhook-id."""
    delivery = ask(url, "POST", path_to("webhooks/deliveries", delivery_id) + "/replay")
    typer.echo(json.dumps(delivery, ensure_ascii=False) if as_json else f"{delivery['id']} is sent again")


@webhooks.command()
def secret(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Print the secret with which receivers verify signatures."""
    _print_secret(ask(url, "GET", "/v1/webhooks/secret"), as_json)


@webhooks.command()
def rotate(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Create and print a new signing secret. For a day the old one signs too, and rotating again fails."""
    _print_secret(ask(url, "POST", "/v1/webhooks/secret/rotate"), as_json)


def _print_secret(secrets: Mapping[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(secrets) if as_json else secrets["current"])
    if secrets["previous_until"] is not None and not as_json:
        typer.echo(
            f"the previous secret also signs until {date_and_time(secrets['previous_until'])}", err=True
        )


def _table(deliveries: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from cli.views.progress import duration

    table = Table("id", "status", "event", "age", "attempts", "last answer", "url", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for delivery in deliveries:
        last = delivery["attempts"][-1] if delivery["attempts"] else None
        table.add_row(
            delivery["id"],
            delivery["status"],
            delivery["type"],
            duration(max(0.0, time.time() - delivery["created_at"])),
            str(len(delivery["attempts"])),
            "-" if last is None else _answer(last),
            delivery["url"],
        )
    return table


def _details(delivery: Mapping[str, Any]) -> str:
    rows = [
        ("id", delivery["id"]),
        ("status", delivery["status"]),
        ("event", delivery["type"]),
        ("of", delivery["object_id"]),
        ("url", delivery["url"]),
        ("created", date_and_time(delivery["created_at"])),
        ("ended", date_and_time(delivery["ended_at"])),
        ("next attempt", date_and_time(delivery["next_attempt_at"])),
    ]
    rows += [
        (
            f"attempt {attempt['number'] or '-'}",
            f"{date_and_time(attempt['at'])}  {_took(attempt)}  {_answer(attempt)}",
        )
        for attempt in delivery["attempts"]
    ]
    lines = [f"{name:<15}{value}" for name, value in rows]
    return "\n".join([*lines, "", json.dumps(delivery["event"], ensure_ascii=False, indent=2)])


def _answer(attempt: Mapping[str, Any]) -> str:
    return str(attempt["status_code"] or attempt["error"])


def _took(attempt: Mapping[str, Any]) -> str:
    return "-" if attempt["duration_s"] is None else f"{attempt['duration_s']:.2f} s"
