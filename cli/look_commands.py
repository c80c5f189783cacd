"""`medusaq top` and `medusaq doctor`: what the system does, and what is wrong with a set-up."""

from __future__ import annotations

import signal
import time
from typing import Annotated

import typer

from cli.remote import DEFAULT_URL, UrlOption


def top(
    url: UrlOption = DEFAULT_URL,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and leave.")] = False,
) -> None:
    """Watch queues, workers, batches and speeds, until Ctrl-C."""
    from rich.console import Console

    from cli.client import Refused, check_url
    from cli.errors import GatewayUnreachable
    from cli.top import Speeds, look
    from cli.top_view import view

    address, console = check_url(url), Console()
    picture, speeds, trouble = look(address), Speeds(), None
    if once or not console.is_terminal:
        console.print(view(console, address, picture, speeds, trouble))
        return
    from rich.live import Live

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be left as it was found
    shown = view(console, address, picture, speeds, trouble)
    try:
        with Live(shown, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                try:
                    before, picture = picture, look(address)
                    speeds, trouble = Speeds.between(before, picture), None
                except (GatewayUnreachable, Refused) as error:  # the latter: Redis left between two questions
                    trouble = str(error)
                live.update(view(console, address, picture, speeds, trouble), refresh=True)
    except KeyboardInterrupt:
        return
