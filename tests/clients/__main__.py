"""Runs the checks of all clients, prints what passed, and writes the table of a document with --write."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

from tests.api.conftest import GatewayProcess
from tests.integration.default_model import serving
from tests.support.environments import CannotInstall, install
from tests.support.measuring.marks import put_between
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import ROOT

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
ENVIRONMENT = ROOT / ".venv" / "clients"
PACKAGES = ROOT / ".venv" / "clients-npm"
NAME = "clients"  # of the part of the document
NPM = "openai_npm"
NODE = shutil.which("node") and shutil.which("npm")
CHECKS = {  # script: distribution
    "openai_sdk": "openai",
    NPM: "openai (npm)",
    "with_langchain": "langchain-openai",
    "with_instructor": "instructor",
    "with_pydantic_ai": "pydantic-ai-slim",
    "with_litellm": "litellm",
    "with_llm": "llm",
}


@contextmanager
def served(folder: Path) -> Iterator[GatewayProcess]:
    """A gateway, and a worker with the default model."""
    server = RedisServer(folder / "redis")
    server.start(appendfsync="no")
    try:
        files = str(folder / "files")
        settings = fast_settings(server, batch_invariant=True, lease_ms=10_000, files=files)
        with serving(settings, folder, io=True) as gateway:
            yield gateway
    finally:
        server.stop()


def check(python: Path, script: str, url: str, model: str) -> list[dict[str, str | None]]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "CLIENTS_URL": f"{url}/v1",
        "CLIENTS_MODEL": model,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # asks no other host
        "DO_NOT_TRACK": "1",
    }
    command = [str(python), str(HERE / "checks" / f"{script}.py")]
    if script == NPM:
        command = ["node", str(PACKAGES / f"{script}.mjs")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    cases: list[dict[str, str | None]] = [
        json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"
    ]
    if done.returncode:
        cases.append({"case": "start", "error": f"{script} ended with {done.returncode}"})
    return cases


def install_packages() -> None:
    """Those of npm, and the check beside them: a module finds packages in the folders above its own.

    Raises CannotInstall.
    """
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for file in (HERE / "package.json", HERE / "checks" / f"{NPM}.mjs"):
        shutil.copy(file, PACKAGES)
    if subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=PACKAGES).returncode:
        raise CannotInstall(f"npm did not install the packages of {HERE / 'package.json'}")


def versions(environment: Path) -> dict[str, str]:
    [folder] = (environment / "lib").glob("python*/site-packages")
    [(_, npm)] = json.loads((HERE / "package.json").read_text())["dependencies"].items()
    found = {found.name.lower(): found.version for found in distributions(path=[str(folder)])}
    return found | {CHECKS[NPM]: npm}


def table(found: dict[str, list[dict[str, str | None]]], installed: dict[str, str]) -> str:
    rows = ["| client | version | passes | fails |", "|---|---|---|---|"]
    for script, cases in found.items():
        name = CHECKS[script]
        passed = "; ".join(str(case["case"]) for case in cases if case["error"] is None) or "-"
        failed = "; ".join(str(case["case"]) for case in cases if case["error"] is not None) or "-"
        rows.append(f"| `{name}` | {installed[name]} | {passed} | {failed} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="a document with a place for the table")
    parser.add_argument("--only", choices=CHECKS, action="append")
    options = parser.parse_args()
    asked = options.only or list(CHECKS)
    if NPM in asked and not NODE:
        raise SystemExit(f"error: {CHECKS[NPM]} needs node and npm; --only names others")
    try:
        python = install(ENVIRONMENT, REQUIREMENTS)
        if NPM in asked:
            install_packages()
    except CannotInstall as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as gateway:
        model = gateway.http.get("/v1/models").json()["data"][0]["id"]
        found = {name: check(python, name, gateway.url, model) for name in asked}
    for script, cases in found.items():
        for case in cases:
            print(f"{CHECKS[script]}: {case['case']}: {case['error'] or 'passes'}")
    if options.write is not None:
        put_between(options.write, NAME, f"{table(found, versions(ENVIRONMENT))}\n")
    return int(any(case["error"] is not None for cases in found.values() for case in cases))


if __name__ == "__main__":
    sys.exit(main())
