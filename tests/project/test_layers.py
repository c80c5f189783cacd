"""Who may import whom: the contracts of pyproject.toml, and what fresh interpreters load."""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = ("api", "cli", "common", "compiling", "engine", "medusaq", "tables", "tasks", "training")
TABLES = ("duckdb", "jinja2", "jsonschema", "openpyxl")  # what readers, templates and schemas of tables need
HEAVY = ("engine", "llama_cpp", "llguidance", "numpy", "torch", *TABLES)
S3 = ("s3fs", "fsspec", "aiobotocore", "botocore", "aiohttp")


@functools.cache
def imported_by(module: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after importing this one."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """The top-level modules that this file names in an import, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize(
    "module", ["api.app", "api.routes.jobs", "tasks.app", "tasks.io", "tasks.broker.wakeable_consumer"]
)
@pytest.mark.slow
def test_the_gateway_and_the_io_worker_need_no_engine(module: str) -> None:
    assert imported_by(module).isdisjoint(HEAVY)


def test_the_gateway_imports_where_neither_the_engine_nor_s3_is_installed() -> None:
    missing = dict.fromkeys((*HEAVY, *S3))
    code = f"import sys; sys.modules.update({missing!r}); import api.app; api.app.create_app()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


@pytest.mark.parametrize("module", ["api.app", "tasks.io"])
def test_a_folder_of_files_needs_no_s3(module: str) -> None:
    assert imported_by(module).isdisjoint(S3)


def test_the_stores_need_no_celery() -> None:
    for module in ("tasks.store.jobs", "tasks.batches.store", "tasks.base.telemetry.tracing"):
        assert "celery" not in imported_by(module), module


def test_a_run_starts_without_what_it_does_not_need() -> None:
    """The web framework alone takes a fifth of a second to load."""
    assert imported_by("cli.run.run").isdisjoint({*HEAVY, "celery", "fastapi"})


def test_a_command_starts_without_what_others_need() -> None:
    """pydantic and the schemas of requests take a tenth of a second, every time."""
    assert imported_by("cli.main").isdisjoint({*HEAVY, "celery", "fastapi", "httpx", "pydantic", "redis"})


def test_the_engine_needs_no_server() -> None:
    assert imported_by("engine").isdisjoint({"api", "cli", "tasks", "celery", "redis", "fastapi"})


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it disables every logger that exists."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)


def test_the_layers_hold() -> None:
    """The contracts of pyproject.toml: order of packages and rooms, no cycles; lazy imports count."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


def test_imports_that_point_up_are_found(tmp_path: Path) -> None:
    for folder in OURS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    upwards = {
        "engine.base.config": "engine.core.engine",
        "tasks.store.jobs": "engine",
        "api.http.sse": "api.app",
    }
    for module, imported in upwards.items():
        with (tmp_path / module.replace(".", "/")).with_suffix(".py").open("a", encoding="utf-8") as file:
            file.write(f"\n\ndef lazy() -> None:\n    import {imported}  # noqa\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    for module, imported in upwards.items():
        assert f"{module} -> {imported} (l." in done.stdout


def test_waiting_threads_sleep_before_llama_cpp_is_loaded() -> None:
    """OpenMP reads its settings once, when it is loaded."""
    code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        assert name != "llama_cpp" or {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} <= os.environ.keys()
sys.meta_path.insert(0, Watch())
import engine.llama.context, llama_cpp
"""
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, timeout=60, check=True)


# Parts of what is asked for: their maker says which of their versions go with it.
PARTS = {
    **dict.fromkeys(("anyio", "pydantic", "pydantic_core", "starlette"), "fastapi"),
    **dict.fromkeys(("billiard", "kombu"), "celery"),
    **dict.fromkeys(("aiohttp", "botocore"), "s3fs"),
    "tornado": "flower",
}
TYPES_ALONE = "_typeshed"
OF_LATER_PYTHONS = "compression"  # in the standard library from 3.14


def test_what_is_imported_is_asked_for_by_name() -> None:
    """Whoever else brings it along may stop to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras.keys() - {"dev"} for line in extras[name])]
    asked = {canonicalize_name(Requirement(line).name) for line in lines}
    packages = packages_distributions()
    found = {module for folder in OURS for path in sources(folder) for module in imports_of(path)}
    for module in found - sys.stdlib_module_names - {*OURS, "", TYPES_ALONE, OF_LATER_PYTHONS}:
        named = {canonicalize_name(name) for name in packages.get(module, [module])} | {PARTS.get(module)}
        assert named & asked, module
