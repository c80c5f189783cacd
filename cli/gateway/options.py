"""What commands against a running gateway share: their options, and one request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.base.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:7860"

UrlOption = Annotated[str, typer.Option(envvar="MEDUSAQ_URL", help="The gateway.")]
WebhookOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Told of the end; see docs/how-to/webhooks.md.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def ask(url: str, method: str, path: str, **request: Any) -> Any:
    """The JSON of the answer. Raises BadInput, GatewayError and GatewayUnreachable."""
    from cli.gateway.client import call, check_url

    with _arguments_in_utf8():
        return call(check_url(url), method, path, **request)


def path_to(kind: str, object_id: str) -> str:
    """Of one object, whatever the user gave as its id. Raises BadInput."""
    from urllib.parse import quote

    with _arguments_in_utf8():
        return f"/v1/{kind}/{quote(object_id, safe='')}"


def print_list(table: Table, more: bool, options: str) -> None:
    """A page of a list; options: those that show more of it."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width; cut nothing that a reader may look for
    console.print(table)
    if more:
        typer.echo(f"there are more: {options}")


@contextlib.contextmanager
def _arguments_in_utf8() -> Iterator[None]:
    """Python takes other bytes of an argument too, as halves of surrogate pairs."""
    try:
        yield
    except UnicodeEncodeError:
        raise BadInput("an argument is not UTF-8") from None
