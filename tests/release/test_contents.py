"""The archives have what belongs into them and nothing else, and what is wrong with one is found."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.release.archives import Archives, build
from tests.release.contents import needed_by, packaged, problems, project, source_problems, wheel_problems
from tests.release.environments import SERVING, USES
from tests.support.workers import ROOT

pytestmark = pytest.mark.slow
NAMED = re.compile(r"(?:medusaq\[|to_install\(['\"])([\w,]+)")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return build(tmp_path_factory.mktemp("release"))


def test_the_archives_are_whole(archives: Archives) -> None:
    assert problems(archives) == []


def test_files_that_no_pattern_of_modules_finds_are_among_them() -> None:
    endings = {Path(name).suffix for name in packaged()}
    assert {".lua", ".jinja", ".safetensors", ".jsonl", ".txt", ".js", ".css", ".typed"} <= endings


def changed(wheel: Path, folder: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy of the wheel with changed files; None leaves one out."""
    made = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            if (content := change(name, old.read(name))) is not None:
                new.writestr(name, content)
    return made


@pytest.mark.parametrize(
    ("place", "old", "new", "problem"),
    [
        (r"claim\.lua$", None, None, "the wheel lacks tasks/store/lua/jobs/claim.lua"),
        (r"licenses/LICENSE$", None, None, "the wheel has no LICENSE"),
        (r"entry_points\.txt$", b"medusaq =", b"medusa =", "the wheel has no command medusaq"),
        (r"METADATA$", b"\nVersion: ", b"\nVersion: 9", "Version is 9"),
        (r"METADATA$", b"Provides-Extra: s3", b"Provides-Extra: s4", "the extras are .*s4"),
        (
            r"METADATA$",
            b"Requires-Dist: httpx",
            b"Requires-Dist: x @ https://a\nX-Was: httpx",
            "takes no URLs",
        ),
    ],
)
def test_what_is_wrong_is_found(
    archives: Archives, tmp_path: Path, place: str, old: bytes | None, new: bytes | None, problem: str
) -> None:
    def change(name: str, content: bytes) -> bytes | None:
        if not re.search(place, name):
            return content
        return None if old is None or new is None else content.replace(old, new, 1)

    [found] = wheel_problems(changed(archives.wheel, tmp_path, change))
    assert re.search(problem, found)


def test_tests_do_not_belong_there(archives: Archives, tmp_path: Path) -> None:
    wheel = Path(shutil.copy(archives.wheel, tmp_path))
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("tests/conftest.py", "")
    assert wheel_problems(wheel) == ["the wheel has, and should not, tests/conftest.py"]


def test_a_source_archive_that_lacks_something_is_found(archives: Archives, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(archives.source) as old, tarfile.open(tmp_path / "s.tar.gz", "w:gz") as new:
        for member in old.getmembers():
            if not member.name.endswith("CHANGELOG.md"):
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
    assert source_problems(tmp_path / "s.tar.gz") == ["the source archive lacks CHANGELOG.md"]


def test_every_extra_is_tried() -> None:
    extras = set(project()["optional-dependencies"]) - {"dev"}
    assert set(USES) == extras
    assert set(SERVING) <= extras
    assert "torch" in needed_by("train") & needed_by("compile")
    assert needed_by("base") == set()


def test_what_one_is_told_to_install_are_extras_that_exist() -> None:
    known = set(project()["optional-dependencies"])
    named = {
        extra
        for name in packaged()
        if name.endswith(".py")
        for found in re.findall(
            r"(?:medusaq\[|to_install\(')([\w,]+)", (ROOT / name).read_text(encoding="utf-8")
        )
        for extra in found.split(",")
    }
    assert named
    assert named <= known
