"""`medusaq models`: manages the model registry of this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.base.errors import EXIT_FAILURE, CliError
from cli.base.plain_help import App
from cli.commands.service import STATE_DIR
from cli.gateway.options import JsonOption, print_list

if TYPE_CHECKING:
    from rich.table import Table

    from cli.views.model_states import ModelState
    from engine.host.file_digest import Progress
    from engine.tools.known_models import KnownModel
    from engine.tools.model_registry import NamedModel, Register

ADD_EPILOG = """[bold]Examples[/]

medusaq models add small ~/models/SmolLM2-135M-Instruct.Q4_0.gguf

medusaq models add qwen2.5-1.5b hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M

medusaq models add vicuna vicuna/vicuna-7b-v1.3.q4_k_m.gguf --heads ~/models/medusa_lm_head.pt

Then: medusaq worker --model small"""

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the model; may contain a-z, 0-9, '.', '_' and '-'.")
]

models = App(help="Models by name, for workers and requests.")


@models.command(epilog=ADD_EPILOG)
def add(
    name: NameArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH|hf:ORG/REPO[:TYPE]",
            help="GGUF file, folder with one, or repository on the Hugging Face hub. TYPE: of several files "
            "the one with this number format or name (default: Q4_K_M).",
        ),
    ],
    heads: Annotated[
        str | None,
        typer.Option(metavar="PATH|hf:ORG/REPO", help="Draft heads: a file, a folder or a repository."),
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Chat template to use instead of the model's own.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model of the same name.")] = False,
) -> None:
    """Register a model under a name. Its files are not moved; their hashes are stored."""
    from cli.stack.model_registration import check_heads, find_heads, find_model, find_template
    from engine.host.file_digest import digest_file, size_of
    from engine.tools.model_registry import NamedModel, check_name, now

    with _register() as register:
        check_name(name)
        if not replace and (taken := register.all().get(name)):
            raise CliError(
                f"{name!r} is already registered as {taken.model.path}: remove it first, or use --replace"
            )
        template = None if chat_template is None else find_template(chat_template)
        path = find_model(source)
        heads_path = None if heads is None else find_heads(heads)
        if heads_path is not None:
            check_heads(heads_path, path)
        size = size_of(path) + (0 if heads_path is None else size_of(heads_path))
        with _reading(size) as progress:
            model_file = digest_file(path, source, progress)
            heads_file = None if heads_path is None else digest_file(heads_path, heads or "", progress)
        register.add(NamedModel(name, model_file, heads_file, template, now()), replace=replace)
    typer.echo(f"{name} is {model_file.path}")


@models.command("list")
def list_models(
    state_dir: Annotated[
        Path, typer.Option(file_okay=False, help="Of a `medusaq up` on this machine.")
    ] = STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """List the registered models, their memory needs, and their state in a running `medusaq up`."""
    from cli.stack.memory_budget import need_of
    from cli.views.model_states import ModelState, states_nearby
    from tasks.base.settings import get_settings

    with _register() as register:
        found = list(register.all().values())
        needs = [need_of(model, get_settings()) for model in found]
    nearby = states_nearby(state_dir) if found else None
    others = ModelState("", "-" if nearby is None else "not served")
    states = {model.name: model for model in nearby or ()}
    rows = [(model, need, states.get(model.name, others)) for model, need in zip(found, needs, strict=True)]
    if as_json:
        listing = [
            {**asdict(model), "need_bytes": need, "state": state.state, "waiting": state.waiting}
            for model, need, state in rows
        ]
        typer.echo(json.dumps(listing, ensure_ascii=False))
    elif found:
        print_list(_table(rows), False, "")
    else:
        typer.echo(
            "no models are registered: add one with `medusaq models add`; `models recommend` lists some"
        )


@models.command()
def recommend(as_json: JsonOption = False) -> None:
    """List well-known instruct models, with the memory and speed to expect here. Fetches nothing."""
    from engine.host.system_memory import look_at_memory
    from engine.tools.known_models import KNOWN, memory_of, weight_bytes_per_s
    from engine.tools.model_registry import Chosen
    from tasks.base.settings import get_settings
    from tasks.worker.engine_loader import engine_config

    config, whole = engine_config(get_settings(), Chosen(None)), look_at_memory().whole
    with _register():
        speed = weight_bytes_per_s(config)
        rows = [
            (model, memory_of(model, config, whole), speed / size, size)
            for model in KNOWN
            for size in (model.shape.weight_bytes,)
        ]
    if as_json:
        keys = ("name", "source", "checkpoint", "licence", "tools", "heads")
        listing = [
            {key: getattr(model, key) for key in keys}
            | {"file_bytes": size, "need_bytes": need, "fits": whole is None or need <= whole}
            | {"tokens_per_s": round(rate, 1)}
            for model, need, rate, size in rows
        ]
        typer.echo(json.dumps(listing, ensure_ascii=False))
        return
    print_list(_recommended(rows, whole), False, "")
    typer.echo(
        "\nneeds: memory of a worker with your settings, at most. tokens/s: of one request without drafts,"
    )
    typer.echo("by the speed of the packaged model here. To add one: medusaq models add NAME SOURCE")


@models.command()
def remove(name: NameArgument) -> None:
    """Remove a model from the registry. Its files are kept."""
    with _register() as register:
        model = register.remove(name)
    files = ", ".join(file.path for file in model.files.values())
    typer.echo(f"removed {name}; its files are kept: {files}")


@models.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="(default: all)")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the files against their stored hashes. Exit code 1 unless all are ok."""
    from engine.host.file_digest import State, state_of

    with _register() as register:
        chosen = [register.get(name) for name in names] if names else list(register.all().values())
        files = [(model.name, what, file) for model in chosen for what, file in model.files.items()]
        with _reading(sum(file.bytes for _, _, file in files)) as progress:
            found = [(name, what, file.path, state_of(file, progress)) for name, what, file in files]
    if as_json:
        keys = ("name", "file", "path", "state")
        typer.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in found], ensure_ascii=False))
    else:
        for name, what, path, state in found:
            typer.echo(f"{state:<8} {name} {what} {path}")
    if any(state is not State.OK for *_, state in found):
        raise typer.Exit(EXIT_FAILURE)


@contextlib.contextmanager
def _register() -> Iterator[Register]:
    """This user's model registry. Converts its errors into CliError."""
    from compiling.base.errors import CompileError
    from engine import EngineError
    from engine.tools.model_registry import Register

    try:
        yield Register()
    except EngineError as error:
        raise CliError(error.message) from None
    except CompileError as error:
        raise CliError(str(error)) from None


@contextlib.contextmanager
def _reading(size: int) -> Iterator[Progress]:
    """Show a progress bar of bytes on stderr, if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)


def _recommended(rows: list[tuple[KnownModel, int, float, int]], whole: int | None) -> Table:
    """whole: bytes of memory here."""
    from rich.filesize import decimal
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("name", "licence", "file", "needs", "tokens/s", "tools", "heads"):
        table.add_column(column, justify="right" if column in ("file", "needs", "tokens/s") else "left")
    table.add_column("source", overflow="fold")
    for model, need, rate, size in rows:
        too_much = whole is not None and need > whole
        table.add_row(
            model.name,
            model.licence,
            decimal(size),
            f"{decimal(need)}{' (too much)' if too_much else ''}",
            f"{rate:.1f}" if rate < 10 else f"{rate:.0f}",
            "yes" if model.tools else "no",
            "no" if model.heads is None else "yes",
            model.source or f"made from {model.checkpoint}: docs/tutorials/vicuna.md",
        )
    return table


def _table(rows: list[tuple[NamedModel, int | None, ModelState]]) -> Table:
    from datetime import datetime

    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    columns = ("name", "size", "needs", "state", "waiting", "added", "heads", "file")
    table = Table(*columns, box=None, pad_edge=False)
    for model, need, state in rows:
        added = datetime.fromtimestamp(model.added_at).strftime("%Y-%m-%d")
        heads = "-" if model.heads is None else Path(model.heads.path).name
        sizes = decimal(model.model.bytes), "-" if need is None else decimal(need)
        waiting = f"{state.waiting:,}" if state.waiting else "-"
        table.add_row(model.name, *sizes, state.state, waiting, added, Text(heads), Text(model.model.path))
    return table
