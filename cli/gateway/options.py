"""Options and helpers of the commands that use a running gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:7860"

UrlOption = Annotated[str, typer.Option(envvar="MEDUSAQ_URL", help="URL of the gateway.")]
WebhookOption = Annotated[
    str | None, typer.Option(metavar="URL", help="URL to notify of the end; see docs/how-to/webhooks.md.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def ask(url: str, method: str, path: str, **request: Any) -> Any:
    """Send a request and return its JSON. Raises BadInput, GatewayError and GatewayUnreachable."""
    from cli.gateway.client import call, check_url

    with _arguments_in_utf8():
        return call(check_url(url), method, path, **request)


def path_to(kind: str, object_id: str) -> str:
    """The path of an object, with the user's id quoted. Raises BadInput."""
    from urllib.parse import quote

    with _arguments_in_utf8():
        return f"/v1/{kind}/{quote(object_id, safe='')}"


def print_list(table: Table, more: bool, options: str) -> None:
    """Print one page of a list. options: the command-line options that show more."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width: do not cut cells
    console.print(table)
    if more:
        typer.echo(f"more can be shown with {options}")


@contextlib.contextmanager
def _arguments_in_utf8() -> Iterator[None]:
    """Report an argument that is not UTF-8, which Python decodes to surrogates."""
    try:
        yield
    except UnicodeEncodeError:
        raise BadInput("an argument is not UTF-8") from None
