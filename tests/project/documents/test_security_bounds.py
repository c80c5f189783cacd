"""SECURITY.md's tables of bounds: they name every endpoint, every background loop, and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from api.app import create_app
from tasks.base.settings import Settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SERVED = ("api", "tasks", "engine")  # what runs in the services; commands end with their user's terminal
LOOPS = ("Thread", "ThreadPoolExecutor", "create_task", "Timer", "Process", "Popen")
# Calls whose name is no constant: the loops of the table that they start, or the bounds that hold them.
NAMED_ELSEWHERE = {
    ("api/service/dependencies.py", "create_task"): ("open requests",),  # cancels what a client left
    ("api/service/online_run.py", "create_task"): ("answers",),  # one for each answer of a request
    ("engine/kernels/build.py", "ThreadPoolExecutor"): (),  # compiles once, before anything is served
    ("engine/sampling/grammar_process.py", "Thread"): ("schemas",),
    ("engine/sampling/grammar_trials.py", "Popen"): ("schemas",),
    ("engine/weights/quantise.py", "Popen"): (),  # of `medusaq compile` alone, which serves nobody
    ("tasks/batches/leader.py", "Thread"): ("batches", "lead"),
    ("tasks/base/periodic.py", "Thread"): ("reconcile", "drop-files"),
    ("tasks/batches/time_slicing.py", "Thread"): ("batch",),
}


def table(marker: str) -> list[list[str]]:
    """Cells of the rows below the head, between the markers of this name."""
    [text] = re.findall(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", PAGE, re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


BOUNDS = table("bounds")
USES = table("uses")
NAMES = [row[0].strip("*") for row in BOUNDS]


@pytest.mark.parametrize("row", BOUNDS, ids=NAMES)
@pytest.mark.slow
def test_every_bound_is_held_by_a_test_that_exists(row: list[str]) -> None:
    name, resource, who, bound, held_by = row
    assert all((name, resource, who, bound))
    links = re.findall(r"\[(test_\w+)\]\((tests/[\w/]+\.py)\)", held_by)
    assert links, f"{name} names no test"
    for test, path in links:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in functions, f"{path} has no {test}"


def test_names_of_bounds_are_unique() -> None:
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("row", USES, ids=[row[0] for row in USES])
def test_every_cell_says_what_bounds_the_resource(row: list[str]) -> None:
    for cell in row[1:]:
        named = {name.strip() for name in cell.split(",")}
        assert named == {"-"} or named <= set(NAMES), named - set(NAMES)


def test_every_bound_is_of_some_use() -> None:
    used = {name.strip() for row in USES for cell in row[1:] for name in cell.split(",")} - {"-"}
    assert used == set(NAMES)


def test_every_endpoint_is_there(tmp_path: Path) -> None:
    app = create_app(Settings(files=str(tmp_path)))
    offered = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    }
    listed = [name for row in USES for name in re.findall(r"`([A-Z]+ /[^`]*)`", row[0])]
    assert sorted(offered) == sorted(listed)


def test_every_background_loop_is_there() -> None:
    """And none is listed that there is no more."""
    started, unnamed = set(), set()
    for path in (path for folder in SERVED for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (kind := called(node)) in LOOPS:
                if (name := constant_name(node)) is not None:
                    started.add(name)
                else:
                    unnamed.add((path.relative_to(ROOT).as_posix(), kind))
    assert unnamed == set(NAMED_ELSEWHERE)
    started |= {name for names in NAMED_ELSEWHERE.values() for name in names}
    listed = {name for row in USES for name in re.findall(r"`([\w.-]+)`", row[0])}
    assert started - set(NAMES) == listed - set(NAMES)


def called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def constant_name(call: ast.Call) -> str | None:
    """The constant name that a call gives to a thread, a pool of threads or a task."""
    names = (word.value for word in call.keywords if word.arg in ("name", "thread_name_prefix"))
    return next((str(value.value) for value in names if isinstance(value, ast.Constant)), None)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("Thread(target=f, name='a')", "a"),
        ("ThreadPoolExecutor(2, thread_name_prefix='a')", "a"),
        ("Thread(target=f)", None),
        ("Thread(target=f, name=f'a{n}')", None),
    ],
)
def test_a_name_that_is_no_constant_is_seen(code: str, name: str | None) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert called(call) in LOOPS
    assert constant_name(call) == name
