"""Checks of this machine: Python, packages, compilers, ports and disks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx

from cli.base.errors import CliError
from cli.base.installing import to_install
from cli.doctor.findings import Finding, fail, ok, warn
from cli.processes.ports import check_port_free
from common.units import size
from tasks.base.settings import Settings
from tasks.base.telemetry.tracing_setup import configured

OLDEST = (3, 11)
DISK_LOW_BYTES, DISK_OUT_BYTES = 2_000_000_000, 200_000_000
ANSWER_S = 2.0
NEEDED_BY = {  # optional extras
    "worker": "the model worker",
    "medusa": "drafting with heads",
    "local": "`medusaq up` and runs without --url",
}


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Iterator[Finding]:
    text = ".".join(map(str, version))
    if version < OLDEST:
        yield fail("python", f"{text} is too old", "install Python 3.11 or newer, and make a new environment")
    else:
        yield ok("python", text)


def packages(settings: Settings) -> Iterator[Finding]:
    """Check the installed packages against medusaq's requirements, including pinned versions."""
    wrong = {extra: list(_unmet(extra)) for extra in ("", "s3", "tracing", *NEEDED_BY)}
    if wrong[""]:
        yield fail("packages", "; ".join(wrong[""]), "pip install -r requirements.lock")
    else:
        yield ok("packages", "the requirements of the gateway and the command are installed")
    for extra, service in NEEDED_BY.items():
        if wrong[extra]:
            what = f"{service} cannot run: {'; '.join(wrong[extra])}"
            yield warn(f"packages[{extra}]", what, f"{to_install(extra)}, if it is to run here")
        else:
            yield ok(f"packages[{extra}]", f"{service} can run")
    if settings.files.startswith("s3://") and wrong["s3"]:
        yield fail("packages[s3]", "; ".join(wrong["s3"]), "pip install 'medusaq[s3]'")
    if configured() and wrong["tracing"]:
        what = f"OTEL_* asks for traces, and none are sent: {'; '.join(wrong['tracing'])}"
        yield warn(
            "packages[tracing]", what, "pip install 'medusaq[tracing]', or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        )


def _unmet(extra: str) -> Iterator[str]:
    from packaging.requirements import Requirement

    for line in metadata.requires("medusaq") or ():
        needed = Requirement(line)
        marker = needed.marker
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            yield f"{needed.name} is missing"
            continue
        if not needed.specifier.contains(version, prereleases=True):
            yield f"{needed.name} is {version}, and must be {needed.specifier}"


def compilers(engine_installed: bool) -> Iterator[Finding]:
    """Check for a compiler, if llama.cpp is not installed."""
    if engine_installed:
        return
    cxx = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    missing = [
        what for what, there in (("a C++ compiler", cxx), ("cmake", shutil.which("cmake"))) if not there
    ]
    if missing:
        what = f"{' and '.join(missing)} missing, which building llama.cpp needs"
        yield warn(
            "compiler", what, "install g++ and cmake with the system's packages, if a worker is to run here"
        )
    else:
        yield ok("compiler", "llama.cpp can be built")


def ports(settings: Settings) -> Iterator[Finding]:
    wanted = (
        ("gateway", settings.port, "MEDUSAQ_PORT", "/healthz"),
        ("flower", settings.flower_port, "MEDUSAQ_FLOWER_PORT", "/healthcheck"),
    )
    for name, port, variable, path in wanted:
        check = f"port of {name}"
        try:
            check_port_free(settings.host, port, name, variable)
        except CliError as error:
            if _is_our_service(settings.host, port, path):
                yield ok(check, f"{port} is served by {name}")
            else:
                yield fail(
                    check, str(error).partition(";")[0], f"stop what uses it, or set {variable} to another"
                )
        else:
            yield ok(check, f"{port} is free")


def _is_our_service(host: str, port: int, path: str) -> bool:
    """Whether this service answers on the port."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    try:
        answer = httpx.get(f"http://{host}:{port}{path}", timeout=ANSWER_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.text.strip() == "OK" if path == "/healthcheck" else answer.text == '{"status":"ok"}'


def disks(name: str, folder: Path) -> Iterator[Finding]:
    """Check the free space of a folder, which need not exist yet. name: of its content."""
    made = next(place for place in (folder, *folder.parents) if place.exists())
    yield free_space(f"disk of {name}", shutil.disk_usage(made).free, str(made))


def free_space(check: str, free: int, where: str) -> Finding:
    what = f"{size(free)} free in {where}"
    if free < DISK_OUT_BYTES:
        return fail(check, what, "make room there, or choose another place")
    if free < DISK_LOW_BYTES:
        return warn(check, what, "make room there before it is full")
    return ok(check, what)
