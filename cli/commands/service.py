"""`medusaq up`, and the commands that run a single service."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.base.errors import BadInput, CliError

if TYPE_CHECKING:
    from cli.stack.memory_budget import Served
    from tasks.base.settings import Settings

STATE_DIR = Path(".medusaq")
MOST_STOPPING_S = 3600.0  # MEDUSAQ_DRAIN_S may be long, and is that of the other process
WAIT_S = 0.2  # interval of the checks for a signal or a failed stack


def up(
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the gateway; 0 chooses a free one. (default: 7860)"),
    ] = None,
    flower_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of Flower; 0 chooses a free one. (default: 5555)"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH|NAME", help="Model to serve; may be repeated. (default: SmolLM2-135M-Instruct)"
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=MODEL]", help="Further name of the model, such as gpt-4o-mini; may be repeated."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for all models together, such as 6GB. (default: 90 % of the free memory)",
        ),
    ] = None,
    state_dir: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for queued jobs and logs.")
    ] = STATE_DIR,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Do not start Flower.")] = False,
    for_this_machine: Annotated[
        bool,
        typer.Option(
            "--for-this-machine",
            help="Use the weight format that measured best on this machine; measure first if needed.",
        ),
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(
            help="For --for-this-machine: one stream (one) or many requests (bulk). (default: bulk)"
        ),
    ] = None,
) -> None:
    """Run the whole stack on this machine until Ctrl-C.

    Crashed services are restarted. Jobs that are still queued at the end are run by the next
    [bold]medusaq up[/] with the same state folder. If several models do not fit into memory together, they
    are swapped in and out as jobs wait for them.
    """
    from cli.commands.compile import ensure_chosen
    from cli.processes.signals import Interrupts
    from cli.stack.local_stack import Stack, StackOptions
    from tasks.base.settings import get_settings

    settings = get_settings()
    if load is not None and not for_this_machine:
        raise BadInput("--load requires --for-this-machine")
    asked = model or [settings.model or ""]
    if for_this_machine:
        for one in asked:
            _say(f"weights: {ensure_chosen(_path(one), load)}")
        settings = settings.model_copy(update={"weights": "for_this_machine"})
    chosen_flower = settings.flower_port if flower_port is None else flower_port
    served, budget = _within_memory(asked, memory, settings)
    options = StackOptions(
        state_dir,
        settings.port if port is None else port,
        None if no_flower else chosen_flower,
        model=asked[0] or None,
        weights=settings.weights if for_this_machine else None,
        served=served,
        budget=budget,
        aliases={**settings.model_aliases, **_aliases(alias or [])},
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
            _say("stopping (press Ctrl-C again to stop immediately)")
        _say("stopped")


def _aliases(given: list[str]) -> dict[str, str]:
    """Raises BadInput."""
    named = {name: model for name, _, model in (one.partition("=") for one in given)}
    if "" in named:
        raise BadInput("--alias needs a name: --alias gpt-4o-mini, or --alias gpt-4o-mini=MODEL")
    return named


def down(
    state_dir: Annotated[
        Path, typer.Option(file_okay=False, help="State folder of the `medusaq up` to stop.")
    ] = STATE_DIR,
) -> None:
    """Stop the stack that [bold]medusaq up[/] runs on a state folder, in order, and wait for its end.

    Running jobs may finish (MEDUSAQ_DRAIN_S); queued ones are kept for the next [bold]medusaq up[/]. A second
    [bold]medusaq down[/] meanwhile stops it at once.
    """
    from cli.processes.folder_lock import holder

    running = holder(state_dir)
    if running is None:
        _say(f"no stack runs on {state_dir}")
        return
    with running:
        running.send_signal(signal.SIGTERM)
        _say(f"stopping the stack on {state_dir} (process {running.pid})")
        until = time.monotonic() + MOST_STOPPING_S
        while _is_held_by(running.pid, state_dir):
            if time.monotonic() > until:
                raise CliError(
                    f"process {running.pid} has not stopped in {MOST_STOPPING_S:g} s; "
                    "`medusaq down` kills it now"
                )
            time.sleep(WAIT_S)
    _say("stopped")


def _is_held_by(pid: int, state_dir: Path) -> bool:
    from cli.processes.folder_lock import holder

    now = holder(state_dir)
    if now is None:
        return False
    with now:
        return now.pid == pid


def _path(asked: str) -> str | None:
    """The path of a model given by name or path; None is the default model. Raises BadInput."""
    from engine.base.errors import RegisterError
    from engine.tools.model_registry import Register

    try:
        return Register().resolve(asked or None).path
    except RegisterError as error:
        raise BadInput(error.message) from None


def _within_memory(
    asked: list[str], memory: str | None, settings: Settings
) -> tuple[tuple[Served, ...], int]:
    """The models with their memory needs, and the budget in bytes; ((), 0) for a single model."""
    from cli.stack import memory_budget

    if len(asked) == 1 and memory is None:
        return (), 0
    from engine.host.system_memory import look_at_memory

    budget, warning = memory_budget.budget_of(memory, look_at_memory())
    if warning is not None:
        _say(warning)
    models = memory_budget.served_models(asked, settings)
    memory_budget.check_each_fits(models, budget, settings)
    if len(models) == 1:
        return (), 0
    return tuple(models), budget


def gateway() -> None:
    """Run the HTTP gateway (MEDUSAQ_HOST, MEDUSAQ_PORT). Needs neither llama.cpp nor a model."""
    from cli.stack import services
    from tasks.base.settings import get_settings

    services.run_gateway(get_settings())


def worker(
    model: Annotated[
        str | None,
        typer.Option(metavar="PATH|NAME", help="GGUF to serve, or a name from `medusaq models`."),
    ] = None,
) -> None:
    """Run a model worker (MEDUSAQ_MODEL, MEDUSAQ_SLOTS, ...). Exit code 3: the model cannot be loaded."""
    if model is not None:
        os.environ["MEDUSAQ_MODEL"] = model  # before the settings are read
    from cli.stack import services
    from tasks.base.settings import get_settings

    services.run_worker(get_settings())


def io() -> None:
    """Run the io worker: batches, webhooks, requeueing of lost jobs, expiry."""
    from cli.stack import services
    from tasks.base.settings import get_settings

    services.run_io(get_settings())


def flower() -> None:
    """Run Flower, the web UI for Celery tasks (MEDUSAQ_FLOWER_PORT)."""
    from cli.stack import services
    from tasks.base.settings import get_settings

    services.run_flower(get_settings())


def redis(port: int, folder: Path) -> None:
    """Run the embedded Redis-protocol server on 127.0.0.1, with its data in FOLDER. Used by `medusaq up`."""
    from cli.stack import services

    services.run_redis(port, folder)


def _addresses(url: str, flower_url: str | None) -> str:
    lines = ["ready; press Ctrl-C to stop", f"  gateway  {url}", f"  docs     {url}/docs"]
    if flower_url is not None:
        lines.append(f"  Flower   {flower_url}")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
