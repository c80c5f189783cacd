"""`medusaq top` and `medusaq doctor`: a live view of the system, and checks of an installation."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.base.errors import EXIT_FAILURE
from cli.commands.service import STATE_DIR
from cli.gateway.options import DEFAULT_URL, JsonOption, UrlOption


def top(
    url: UrlOption = DEFAULT_URL,
    state_dir: Annotated[
        Path, typer.Option(file_okay=False, help="Of a `medusaq up` on this machine.")
    ] = STATE_DIR,
    every: Annotated[float, typer.Option(min=0.2, help="Refresh interval in seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
) -> None:
    """Show queues, models, workers, batches and speeds, until Ctrl-C."""
    from rich.console import Console, RenderableType

    from cli.gateway.client import check_url
    from cli.processes.signals import Interrupts
    from cli.views.model_states import model_states, models_nearby, restarts_nearby
    from cli.views.snapshot import Speeds, take_snapshot
    from cli.views.top_view import view
    from medusaq.errors import GatewayError, GatewayUnreachable

    address, console = check_url(url), Console()
    snapshot, speeds, last_error = take_snapshot(address), Speeds(), None

    def shown() -> RenderableType:
        models = model_states(snapshot, models_nearby(state_dir, address))
        restarts = restarts_nearby(state_dir, address)
        return view(console, address, snapshot, speeds, last_error, models, restarts)

    if once or not console.is_terminal:
        console.print(shown())
        return
    from rich.live import Live

    with (
        Interrupts() as interrupts,
        Live(shown(), console=console, screen=True, auto_refresh=False) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        interrupts.on_first(_leave_request)
        while not interrupts.wait(every):
            try:
                before, snapshot = snapshot, take_snapshot(address)
                speeds, last_error = Speeds.between(before, snapshot), None
            except (GatewayUnreachable, GatewayError) as error:  # GatewayError: Redis failed meanwhile
                last_error = str(error)
            live.update(shown(), refresh=True)


def _leave_request() -> None:
    """End a request that waits. The loop also asks `interrupts`: int("1.0") may drop this exception."""
    raise KeyboardInterrupt


def doctor(
    state_dir: Annotated[
        Path, typer.Option(file_okay=False, help="Of a `medusaq up` on this machine.")
    ] = STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Check the installation, and say how to fix problems. Exit code 1: something will not work.

    It checks this machine and the services that the settings name: run it where the problem is, in the
    same folder and with the same environment.
    """
    from rich.console import Console
    from rich.text import Text

    from cli.doctor.checks import examine
    from cli.doctor.findings import Grade

    console, findings = Console(soft_wrap=True, highlight=False), []
    styles = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}
    for finding in examine(state_dir):
        findings.append(finding)
        if not as_json:
            line = Text.assemble(
                (f"{finding.grade:<5}", styles[finding.grade]), f"{finding.check:<18}", finding.what
            )
            console.print(line)
            if finding.mend:
                console.print(Text(f"{'':<5}{'':<18}-> {finding.mend}"))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    if any(finding.grade is Grade.FAIL for finding in findings):
        raise typer.Exit(EXIT_FAILURE)
