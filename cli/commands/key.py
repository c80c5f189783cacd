"""`medusaq keys`: manages API keys. Accesses Redis directly: keys cannot be created over HTTP."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.base.errors import CliError
from cli.base.plain_help import App
from cli.commands.service import STATE_DIR
from cli.gateway.options import JsonOption, print_list
from tasks.records.api_key import DEFAULT_MAX_BATCHES, DEFAULT_MAX_FILES, DEFAULT_MAX_JOBS, ApiKey, Limits

if TYPE_CHECKING:
    from rich.table import Table

    from tasks.store.api_keys import KeyStore

CREATE_EPILOG = """[bold]Examples[/]

medusaq keys create alice

MEDUSAQ_API_KEY=$(medusaq keys create night --tokens-per-day 5000000 --weight 0.5)

The key is printed to stdout and cannot be shown again: only its hash is stored. As soon
as a key exists, the gateway requires one from everybody."""

LIST_EPILOG = """[bold]Examples[/]

medusaq keys list --json"""

REVOKE_EPILOG = """[bold]Examples[/]

medusaq keys revoke key_8e8f"""

FIRST_KEY = """from now on every request to the gateway needs a key: medusaq takes it from MEDUSAQ_API_KEY,
over HTTP it is the header `Authorization: Bearer KEY`"""

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name for the key's owner.")]
StateOption = Annotated[
    Path,
    typer.Option(
        file_okay=False, help="State folder of a running `medusaq up`; ignored if MEDUSAQ_REDIS_URL is set."
    ),
]

keys = App(help="API keys of a gateway, and their limits.")


@keys.command(epilog=CREATE_EPILOG)
def create(
    name: NameArgument,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="(default: no limit)")] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(min=1, help="Prompt and answer tokens per UTC day. (default: no limit)")
    ] = None,
    max_jobs: Annotated[
        int, typer.Option(min=1, help="Most unfinished jobs, not counting batch lines.")
    ] = DEFAULT_MAX_JOBS,
    max_batches: Annotated[int, typer.Option(min=1, help="Most unfinished batches.")] = DEFAULT_MAX_BATCHES,
    weight: Annotated[float, typer.Option(min=0.001, max=1000, help="Relative share of the workers.")] = 1.0,
    max_files: Annotated[
        int | None, typer.Option(min=1, help=f"Most stored files. (default: {DEFAULT_MAX_FILES})")
    ] = None,
    max_files_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Most bytes of all files together. (default: MEDUSAQ_MAX_FILES_BYTES)"),
    ] = None,
    max_stored_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Most bytes of its records in Redis. (default: MEDUSAQ_MAX_STORED_BYTES)"),
    ] = None,
    state_dir: StateOption = STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Create an API key and print it. It cannot be shown again."""
    with _store(state_dir) as store:
        limits = Limits(
            requests_per_minute,
            tokens_per_day,
            max_jobs,
            max_batches,
            weight,
            max_files,
            max_files_bytes,
            max_stored_bytes,
        )
        is_first = all(earlier.revoked_at for earlier in store.list())
        key, secret = store.create(name, limits)
    if as_json:
        typer.echo(json.dumps({**_shown(key), "key": secret}, ensure_ascii=False))
    else:
        typer.echo(secret)
        print(f"created {key.id}; store the key above, it cannot be shown again", file=sys.stderr)
    if is_first:
        print(FIRST_KEY, file=sys.stderr)


@keys.command("list", epilog=LIST_EPILOG)
def list_keys(state_dir: StateOption = STATE_DIR, as_json: JsonOption = False) -> None:
    """List all keys, the oldest first, with their usage today."""
    with _store(state_dir) as store:
        found = store.list()
    if as_json:
        typer.echo(json.dumps([_shown(key) for key in found], ensure_ascii=False))
    elif found:
        print_list(_table(found), False, "")
    else:
        typer.echo("no keys: only this machine can use the gateway")


@keys.command(epilog=REVOKE_EPILOG)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Key id, as shown by `medusaq keys list`.")],
    state_dir: StateOption = STATE_DIR,
) -> None:
    """Revoke a key. Jobs and batches that were submitted with it continue."""
    with _store(state_dir) as store:
        store.revoke(key_id)
    typer.echo("revoked")


@contextlib.contextmanager
def _store(state_dir: Path) -> Iterator[KeyStore]:
    """The keys in the Redis of the settings, or of the stack that runs on the state folder."""
    from cli.stack.state_file import running_stack
    from tasks.base.errors import KeyNotFound, StoreUnavailable
    from tasks.base.settings import get_settings
    from tasks.store.api_keys import KeyStore
    from tasks.store.database import Database

    settings = get_settings()
    if "redis_url" not in settings.model_fields_set and (running := running_stack(state_dir)):
        settings = settings.model_copy(update={"redis_url": running["redis_url"]})
    database = Database.connect(settings)
    try:
        yield KeyStore(database)
    except KeyNotFound as error:
        raise CliError(str(error)) from None
    except StoreUnavailable as error:
        raise CliError(f"{error}; start `medusaq up`, or set MEDUSAQ_REDIS_URL") from None
    finally:
        database.close()


def _shown(key: ApiKey) -> dict[str, object]:
    return {**asdict(key), "key": key.shown}


def _table(found: list[ApiKey]) -> Table:
    from datetime import datetime

    from rich.table import Table
    from rich.text import Text

    columns = (
        "id",
        "name",
        "key",
        "made",
        "requests/min",
        "tokens today",
        "jobs",
        "batches",
        "files",
        "MB of files",
        "MB in Redis",
        "weight",
    )
    table = Table(*columns, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for key in found:
        limits = key.limits
        table.add_row(
            key.id,
            Text(key.name),
            "revoked" if key.revoked_at else key.shown,
            datetime.fromtimestamp(key.created_at).strftime("%Y-%m-%d"),
            str(limits.requests_per_minute or "any"),
            _of(key.tokens_today, limits.tokens_per_day),
            _of(key.jobs, limits.max_jobs),
            _of(key.batches, limits.max_batches),
            _of(key.files, limits.max_files),
            f"{key.files_bytes / 1e6:.1f}",
            f"{key.stored_bytes / 1e6:.1f}",
            f"{limits.weight:g}",
        )
    return table


def _of(used: int, limit: int | None) -> str:
    return f"{used} of {limit}" if limit else str(used)
