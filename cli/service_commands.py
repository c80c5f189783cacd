"""`medusaq up`, and each service by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

STATE_DIR = Path(".medusaq")
WAIT_S = 0.2  # how soon a signal or a failure of the stack ends `up`


def up(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Of the gateway; 0 is any. (default: 7860)")
    ] = None,
    flower_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Of Flower; 0 is any. (default: 5555)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="PATH|NAME", help="GGUF to serve. (default: SmolLM2-135M-Instruct)"),
    ] = None,
    state_dir: Annotated[
        Path, typer.Option(file_okay=False, help="Where queued jobs and logs are kept.")
    ] = STATE_DIR,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Leave Flower out.")] = False,
    for_this_machine: Annotated[
        bool,
        typer.Option(
            "--for-this-machine",
            help="Compute weights as was measured to be best here; measure first if need be.",
        ),
    ] = False,
    load: Annotated[
        str | None, typer.Option(help="With it: one stream (one), or many requests (bulk). (default: bulk)")
    ] = None,
) -> None:
    """Run the whole stack on this machine until Ctrl-C.

    A crashed service is restarted. Jobs still queued at the end are run by the next
    [bold]medusaq up[/] on the same state folder.
    """
    from cli.compile_commands import ensure_chosen
    from cli.errors import BadInput
    from cli.interrupts import Interrupts
    from cli.stack import Stack, StackOptions
    from tasks.settings import get_settings

    settings = get_settings()
    if load is not None and not for_this_machine:
        raise BadInput("--load goes with --for-this-machine")
    if for_this_machine:
        _say(f"weights: {ensure_chosen(model or settings.model, load)}")
    chosen_flower = settings.flower_port if flower_port is None else flower_port
    options = StackOptions(
        state_dir,
        settings.port if port is None else port,
        None if no_flower else chosen_flower,
        model,
        weights="for_this_machine" if for_this_machine else None,
    )
    with Interrupts() as interrupts:
        stack = Stack(options, _say)
        interrupts.on_further(stack.hurry)
        with stack:
            _say(f"starting; logs in {stack.logs}")
            if stack.wait_ready(interrupts.requested):
                _say(_addresses(stack.url, stack.flower_url))
            while not interrupts.wait(WAIT_S):
                if (error := stack.failed()) is not None:
                    raise error
            _say("stopping (Ctrl-C again: at once)")
        _say("stopped")


def gateway() -> None:
    """Serve the HTTP API (MEDUSAQ_HOST, MEDUSAQ_PORT). Needs neither llama.cpp nor a model."""
    from cli import services
    from tasks.settings import get_settings

    services.run_gateway(get_settings())


def worker(
    model: Annotated[
        str | None,
        typer.Option(metavar="PATH|NAME", help="GGUF to serve, or a name that `medusaq models` knows."),
    ] = None,
) -> None:
    """Serve the model (MEDUSAQ_MODEL, MEDUSAQ_SLOTS, ...). Exit code 3: it cannot be loaded."""
    if model is not None:
        os.environ["MEDUSAQ_MODEL"] = model  # before anybody reads the settings
    from cli import services
    from tasks.settings import get_settings

    services.run_worker(get_settings())


def io() -> None:
    """Requeue what was lost, expire what is overdue: everything that needs no model."""
    from cli import services
    from tasks.settings import get_settings

    services.run_io(get_settings())


def flower() -> None:
    """Serve Flower's pages about all tasks (MEDUSAQ_FLOWER_PORT)."""
    from cli import services
    from tasks.settings import get_settings

    services.run_flower(get_settings())


def redis(port: int, folder: Path) -> None:
    """Serve the Redis protocol on 127.0.0.1, with the data in FOLDER. Part of `medusaq up`."""
    from cli import services

    services.run_redis(port, folder)


def _addresses(url: str, flower_url: str | None) -> str:
    lines = ["ready, Ctrl-C stops it", f"  gateway  {url}", f"  docs     {url}/docs"]
    if flower_url is not None:
        lines.append(f"  Flower   {flower_url}")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
