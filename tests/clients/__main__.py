"""Runs the checks of all clients, prints what passed, and writes the table of a document with --write."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

from tests.api.conftest import GatewayProcess
from tests.integration.default_model import serving
from tests.support.environments import install
from tests.support.measuring.marks import put_between
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import ROOT

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
ENVIRONMENT = ROOT / ".venv" / "clients"
NAME = "clients"  # of the part of the document
CHECKS = {  # script: distribution
    "openai_sdk": "openai",
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
        settings = fast_settings(server, batch_invariant=True, lease_ms=10_000)
        with serving(settings, folder) as gateway:
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
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    cases: list[dict[str, str | None]] = [
        json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"
    ]
    if done.returncode:
        cases.append({"case": "start", "error": f"{script} ended with {done.returncode}"})
    return cases


def versions(environment: Path) -> dict[str, str]:
    [folder] = (environment / "lib").glob("python*/site-packages")
    return {found.name.lower(): found.version for found in distributions(path=[str(folder)])}


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
    python = install(ENVIRONMENT, REQUIREMENTS)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as gateway:
        model = gateway.http.get("/v1/models").json()["data"][0]["id"]
        found = {name: check(python, name, gateway.url, model) for name in options.only or CHECKS}
    for script, cases in found.items():
        for case in cases:
            print(f"{CHECKS[script]}: {case['case']}: {case['error'] or 'passes'}")
    if options.write is not None:
        put_between(options.write, NAME, f"{table(found, versions(ENVIRONMENT))}\n")
    return int(any(case["error"] is not None for cases in found.values() for case in cases))


if __name__ == "__main__":
    sys.exit(main())
