"""Where the converter comes from, and what becomes of the process that runs it."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest

from common.llama_build import cache_folder
from compiling.base.errors import ConverterError, RoomError, SourceError
from compiling.base.progress import Silence
from compiling.source import converter

BACKEND = """
from pathlib import Path
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = Path(folder, "llama_cpp_python-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: {version}\\n")
    return info.name
def build_wheel(*args, **kwargs):
    raise NotImplementedError
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "llama-cpp-python"
version = "{version}"
"""


class Heard(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as pip's only index, and an empty cache of ours."""
    links = tmp_path / "links"
    links.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", converter.SETTING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return links


def write_sdist(folder: Path, files: dict[str, str]) -> None:
    """One that pip takes for the source of the installed llama-cpp-python."""
    version = converter.runtime_version()
    top = f"llama_cpp_python-{version}"
    whole = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: {version}\n",
        "pyproject.toml": PROJECT.format(version=version),
        "backend.py": BACKEND.format(version=version),
        **files,
    }
    with tarfile.open(folder / f"{top}.tar.gz", "w:gz") as tar:
        for name, text in whole.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def test_what_the_converter_needs_is_kept_and_nothing_else(index: Path) -> None:
    inside = "vendor/llama.cpp"
    wanted = {
        f"{inside}/{name}": name
        for name in (converter.SCRIPT, "conversion/base.py", "gguf-py/gguf/gguf.py", "LICENSE")
    }
    unwanted = {f"{inside}/src/llama.cpp": "", f"{inside}/conversion.py": "", "llama_cpp/llama.py": ""}
    write_sdist(index, wanted | unwanted)
    heard = Heard()
    for _ in range(2):
        found = converter.find(heard)
        assert found == cache_folder() / f"converter-{converter.runtime_version()}"
        files = {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()}
        assert files == set(wanted.values())
    assert len(heard.lines) == 1, "fetched once"
    assert "77 MB" in heard.lines[0]
    assert list(found.parent.iterdir()) == [found], "nothing beside it"


def test_a_cache_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ConverterError, match=r"converter-.*: llama.cpp's converter cannot be stored: "):
        converter.find(Silence())
    assert not list(index.iterdir())


def test_a_source_that_reaches_outside_is_refused(index: Path, tmp_path: Path) -> None:
    inside = "vendor/llama.cpp"
    write_sdist(index, {f"{inside}/{converter.SCRIPT}": "", f"{inside}/conversion/../../evil.py": "ran"})
    with pytest.raises(ConverterError, match="cannot be unpacked"):
        converter.find(Silence())
    assert not list(tmp_path.rglob("evil.py"))
    assert not list(cache_folder().iterdir())


@pytest.mark.usefixtures("index")
def test_a_source_that_cannot_be_fetched_names_the_setting() -> None:
    with pytest.raises(ConverterError, match=f"cannot fetch .*{converter.SETTING}") as caught:
        converter.find(Silence())
    assert len(str(caught.value).splitlines()) == 1
    assert not list(cache_folder().iterdir())


def test_a_checkout_without_the_converter_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(converter.SETTING, str(tmp_path))
    with pytest.raises(ConverterError, match=f"holds no {converter.SCRIPT}"):
        converter.find(Silence())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConverterError, match=r"needs sentencepiece: pip install 'medusaq\[compile\]'"):
        converter.find(Silence())


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", RoomError, "killed by the system: too little memory?"),
        ("raise SystemExit(3)", SourceError, "cannot be converted: exit code 3"),
        ("raise ValueError('two\\nlines')", SourceError, "cannot be converted: two"),
        ("raise KeyError('rope_theta')", SourceError, "cannot be converted: KeyError: 'rope_theta'"),
        ("import nothing_of_that_name", SourceError, "No module named 'nothing_of_that_name'"),
    ],
)
def test_how_a_converter_fails(tmp_path: Path, code: str, error: type[Exception], said: str) -> None:
    (tmp_path / converter.SCRIPT).write_text(code)
    with pytest.raises(error) as caught:
        converter.run(tmp_path, [converter.Job(tmp_path, "small", tmp_path / "out.gguf")], Silence())
    assert str(caught.value).startswith("small: ")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
