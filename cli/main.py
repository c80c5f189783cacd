"""`medusaq`: registers the commands, and reports every error as one line on stderr and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable

import typer

from cli.base.errors import EXIT_BAD_INPUT, EXIT_FAILURE, Interrupted, exit_code_of
from cli.base.installing import OF_WORKER, to_install
from cli.base.plain_help import App
from cli.commands.batch import batches
from cli.commands.bench import bench
from cli.commands.compare import COMPARE_EPILOG, compare_command
from cli.commands.compile import COMPILE_EPILOG, compile_command
from cli.commands.diagnostics import doctor, top
from cli.commands.heads.export import EXPORT_EPILOG, export_heads
from cli.commands.heads.slice import SLICE_EPILOG, slice_heads
from cli.commands.heads.train import TRAIN_EPILOG, train_heads
from cli.commands.job import SUBMIT_EPILOG, cancel, jobs, status, submit
from cli.commands.key import keys
from cli.commands.model import models
from cli.commands.run import RUN_EPILOG, VALIDATE_EPILOG, run_command, validate
from cli.commands.service import down, flower, gateway, io, redis, up, worker
from cli.commands.webhook import webhooks
from common.disk_space import reason
from medusaq.errors import MedusaqError

SELDOM = 20_000  # new objects until the next collection
app = App(
    name="medusaq",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EPILOGS = {
    "run": RUN_EPILOG,
    "validate": VALIDATE_EPILOG,
    "submit": SUBMIT_EPILOG,
    "compare": COMPARE_EPILOG,
    "train-heads": TRAIN_EPILOG,
    "compile": COMPILE_EPILOG,
    "slice-heads": SLICE_EPILOG,
    "export-heads": EXPORT_EPILOG,
}
PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Bulk runs": {"run": run_command, "validate": validate},
    "Single jobs": {"submit": submit, "status": status, "cancel": cancel, "jobs": jobs},
    "The stack": {"up": up, "down": down, "top": top, "doctor": doctor},
    "Models": {"compile": compile_command},
    "Draft heads": {
        "compare": compare_command,
        "train-heads": train_heads,
        "slice-heads": slice_heads,
        "export-heads": export_heads,
    },
    "One service in the foreground": {"gateway": gateway, "worker": worker, "io": io, "flower": flower},
}
for panel, commands in PANELS.items():
    for name, function in commands.items():
        app.command(name, rich_help_panel=panel, epilog=EPILOGS.get(name))(function)
app.add_typer(batches, name="batches", rich_help_panel="Bulk runs")
app.add_typer(keys, name="keys", rich_help_panel="The stack")
app.add_typer(models, name="models", rich_help_panel="Models")
app.add_typer(webhooks, name="webhooks", rich_help_panel="Single jobs")
app.add_typer(bench, name="bench", rich_help_panel="Draft heads")
app.command("redis", hidden=True)(redis)


@app.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Batch processing of language-model prompts.

    [bold]medusaq run FILE -o RESULTS[/] starts a stack of its own; [bold]medusaq up[/] keeps one running.
    """
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"medusaq {installed('medusaq')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def main() -> None:
    """The entry point. Errors that a user can cause are shown without a traceback."""
    # Short commands make next to no garbage, and looking for it takes time.
    gc.set_threshold(SELDOM)
    atexit.register(gc.freeze)
    try:
        code = app(prog_name="medusaq", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        see = f" (see {context.command_path} --help)" if context is not None else ""
        _fail(f"error: {error.format_message()}{see}", error.exit_code)
    except Interrupted as error:
        _fail(str(error), error.exit_code)
    except MedusaqError as error:
        _fail(f"error: {error}", exit_code_of(error))
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", Interrupted("").exit_code)
    except BrokenPipeError:  # the reader closed the pipe, as in `medusaq jobs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that is not ours
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"error: {where}{reason(error)}", EXIT_FAILURE)
    except ModuleNotFoundError as error:
        if error.name not in OF_WORKER:
            raise
        _fail(f"error: this command needs {error.name}: {to_install('worker,local')}", EXIT_FAILURE)
    except Exception as error:
        from tasks.base.errors import SettingsError

        if not isinstance(error, SettingsError):
            raise
        _fail(f"error: {error}", EXIT_BAD_INPUT)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)
