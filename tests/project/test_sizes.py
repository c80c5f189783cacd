"""How large folders and files may be: what is larger is hard to find one's way in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.project.test_layers import OURS, sources
from tests.support.workers import ROOT

MOST_ENTRIES = 12
MOST_LINES = 400
CACHE = "__pycache__"

# All but the tests have 13, of which one is __init__.py where they are Python's.
CROWDED = {
    "cli": "its rooms, and the modules that start them",
    "cli/commands": "a module for each group of commands",
    "engine": "its rooms, and the service that its clients start",
    "tasks": "its rooms, and the modules that Celery is started with",
    "tasks/batches": "the parts of one leader's round, each small",
    "tasks/store/lua/lib": "a library for each subject of the scripts",
    "tests/engine": "a folder for each room of the engine, and what they share",
    "tests/benchmarks": "a folder for each subject, and the programs that measure",
    "tests/tasks": "a folder for each room of tasks, and what they share",
    "tests": "the seven packages, and what tests all of them together",
}
READ = (*OURS, "docs", "examples", "tests", "tools")
LONG: dict[str, str] = {}
OF_ONE_KIND = ("commands", "doctor", "heads", "routes")  # modules that nothing but the top imports


def crowded(root: Path, folders: tuple[str, ...]) -> set[str]:
    """Folders with too many entries; caches, and what holds nothing else, are none."""
    entries: dict[Path, set[str]] = {}
    for path in (path.relative_to(root) for folder in folders for path in (root / folder).rglob("*")):
        if (root / path).is_file() and not any(part[0] == "." or part == CACHE for part in path.parts):
            for entry in (path, *path.parents[:-1]):
                entries.setdefault(entry.parent, set()).add(entry.name)
    return {str(path) for path, names in entries.items() if path != Path() and len(names) > MOST_ENTRIES}


def test_no_folder_has_more_entries_than_one_can_overlook() -> None:
    assert crowded(ROOT, (*OURS, "tests")) == CROWDED.keys()


def test_no_file_is_longer_than_one_can_read_at_once() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for folder in READ
        for path in sources(folder)
    }
    long = {str(path.relative_to(ROOT)) for path, lines in lengths.items() if lines > MOST_LINES}
    assert long == LONG.keys()


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    for folder, files in {"a": MOST_ENTRIES, "a/gone/__pycache__": 1, "b/c": MOST_ENTRIES + 1}.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            (tmp_path / folder / f"{number}.py").touch()
    assert crowded(tmp_path, ("a", "b")) == {"b/c"}


def defined(module: Path) -> set[str]:
    """Names at the top of a module."""
    found: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


ROOMS = [file.parent for top in OURS for file in sorted((ROOT / top).rglob("*/__init__.py"))]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_says_what_it_is_for_and_where_its_public_names_are(room: Path) -> None:
    """They are imported from their modules: a room that imported all of them would be loaded whole."""
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert said
    if room.name in OF_ONE_KIND:
        return
    what, _, public = " ".join(said.split()).partition(" Public: ")
    assert " In: " in what
    assert " Out: " in what
    names = public.removesuffix(".").split(", ")
    for module, _, name in (name.partition(".") for name in names):
        assert name in defined(room / f"{module}.py")
