"""Who may import whom, held in fresh interpreters and over the source."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
OURS = ("api", "cli", "common", "compiling", "engine", "tasks", "training")
HEAVY = ("engine", "llama_cpp", "llguidance", "numpy", "jinja2", "torch")
S3 = ("s3fs", "fsspec", "aiobotocore", "botocore", "aiohttp")


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


def files_importing(module: str, *folders: str) -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in sources(folder)
        if module in imports_of(path)
    ]


@pytest.mark.parametrize("module", ["api.app", "api.jobs", "tasks.app", "tasks.io", "tasks.consumer"])
def test_the_gateway_and_the_io_worker_need_no_engine(module: str) -> None:
    assert imported_by(module).isdisjoint(HEAVY)


def test_the_gateway_imports_where_the_engine_is_not_installed() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r})); import api.app; api.app.create_app()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


@pytest.mark.parametrize("module", ["api.app", "tasks.io"])
def test_a_folder_of_files_needs_no_s3(module: str) -> None:
    assert imported_by(module).isdisjoint(S3)


def test_the_gateway_imports_where_s3_is_not_installed() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({S3!r})); import api.app; api.app.create_app()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_the_stores_need_no_celery() -> None:
    for module in ("tasks.store", "tasks.batches", "tasks.tracing"):
        assert "celery" not in imported_by(module), module


def test_a_run_starts_without_what_it_does_not_need() -> None:
    """The web framework alone takes a fifth of a second to load."""
    assert imported_by("cli.run").isdisjoint({*HEAVY, "celery", "fastapi"})


def test_a_command_starts_without_what_others_need() -> None:
    """pydantic and the schemas of requests take a tenth of a second, every time."""
    assert imported_by("cli.main").isdisjoint({*HEAVY, "celery", "fastapi", "httpx", "pydantic", "redis"})


def test_common_imports_nothing_of_ours() -> None:
    for folder in OURS:
        assert files_importing(folder, "common") == []


def test_the_engine_imports_common_alone_of_ours() -> None:
    assert imported_by("engine").isdisjoint({"api", "cli", "tasks", "celery", "redis", "fastapi"})
    for path in sources("engine"):
        assert imports_of(path).isdisjoint({"api", "cli", "compiling", "tasks", "training"}), path


def test_training_imports_the_engine_alone() -> None:
    assert files_importing("engine", "training"), "the rule is about something"
    for folder in ("api", "cli", "compiling", "tasks"):
        assert files_importing(folder, "training") == []
    assert files_importing("training", "api", "tasks") == []


def test_compiling_imports_the_engine_alone() -> None:
    for folder in ("api", "cli", "tasks", "training"):
        assert files_importing(folder, "compiling") == []
    assert files_importing("compiling", "api", "tasks") == []


def test_only_the_model_worker_imports_the_engine() -> None:
    assert files_importing("engine", "api", "tasks") == [
        "tasks/conversions.py",
        "tasks/engine_loader.py",
        "tasks/model_worker.py",
        "tasks/worker_figures.py",
    ]


def test_tasks_import_neither_api_nor_cli() -> None:
    assert files_importing("api", "tasks") == files_importing("cli", "tasks", "api") == []


def test_who_imports_llama_cpp() -> None:
    assert files_importing("llama_cpp", *OURS) == [
        "engine/context.py",
        "engine/ggml.py",
        "engine/importance.py",
        "engine/model.py",
        "engine/quantise.py",
    ]


def test_waiting_threads_sleep_before_llama_cpp_is_loaded() -> None:
    """OpenMP reads its settings once, when it is loaded."""
    code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        assert name != "llama_cpp" or "GOMP_SPINCOUNT" in os.environ
sys.meta_path.insert(0, Watch())
import engine.context, llama_cpp
"""
    env = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, timeout=60, check=True)


# Parts of what is asked for: their maker says which of their versions go with it.
PARTS = {
    **dict.fromkeys(("anyio", "pydantic", "pydantic_core", "starlette"), "fastapi"),
    **dict.fromkeys(("billiard", "kombu"), "celery"),
    **dict.fromkeys(("aiohttp", "botocore"), "s3fs"),
    "tornado": "flower",
}
TYPES_ALONE = "_typeshed"


def test_what_is_imported_is_asked_for_by_name() -> None:
    """Whoever else brings it along may stop to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras.keys() - {"dev"} for line in extras[name])]
    asked = {canonicalize_name(Requirement(line).name) for line in lines}
    packages = packages_distributions()
    found = {module for folder in OURS for path in sources(folder) for module in imports_of(path)}
    for module in found - sys.stdlib_module_names - {*OURS, "", TYPES_ALONE}:
        named = {canonicalize_name(name) for name in packages.get(module, [module])} | {PARTS.get(module)}
        assert named & asked, module
