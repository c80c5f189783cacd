"""The register of models by name: what it keeps, what it refuses, and its faults, each caused."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from common.llama_build import data_folder
from engine.base.errors import RegisterError
from engine.host.file_digest import FileDigest, State, digest_file, state_of
from engine.tools.model_registry import NamedModel, Register, check_name

CONTENT = b"GGUF and so on"


@pytest.fixture
def register(tmp_path: Path) -> Register:
    return Register(tmp_path / "register")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(CONTENT)
    return path


def named(name: str, path: Path, heads: Path | None = None) -> NamedModel:
    kept_heads = None if heads is None else digest_file(heads, "heads")
    return NamedModel(name, digest_file(path, str(path)), kept_heads, added_at=1.0)


def test_what_is_added_is_found_and_resolved(register: Register, file: Path) -> None:
    assert register.all() == {}, "no register is an empty one"
    heads = file.with_name("heads.pt")
    heads.write_bytes(b"heads")
    one = replace(named("one", file, heads), chat_template="vicuna.jinja")
    register.add(one)
    register.add(named("two", file))
    assert Register(register.folder).all() == {"one": one, "two": named("two", file)}
    chosen = register.resolve("one")
    assert (chosen.path, chosen.name, chosen.heads) == (str(file), "one", str(heads))
    assert chosen.chat_template == "vicuna.jinja"


def test_the_hash_is_that_of_the_file(file: Path) -> None:
    read: list[int] = []
    kept = digest_file(file, "typed", read.append)
    assert kept == FileDigest(str(file), hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "typed")
    assert sum(read) == len(CONTENT)


def test_a_path_is_served_as_before(register: Register, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (str(file), "missing/model.gguf", "missing.gguf", "Upper"):  # the loader says what is wrong
        assert register.resolve(path).path == path
        assert register.resolve(path).name is None
    assert register.resolve(None).path is None
    monkeypatch.chdir(file.parent)
    file.rename("plain")
    assert register.resolve("plain").path == "plain"
    register.add(named("plain", file.with_name("plain")))
    assert register.resolve("plain").name == "plain", "a name goes before a file"
    assert register.resolve("./plain").name is None


def test_an_unknown_name_lists_those_there_are(register: Register, file: Path) -> None:
    with pytest.raises(RegisterError, match=r"neither a file nor.*none has a name yet"):
        register.resolve("three")
    register.add(named("two", file))
    register.add(named("one", file))
    with pytest.raises(RegisterError, match=r"'three' is neither a file nor.*known: one, two"):
        register.resolve("three")
    with pytest.raises(RegisterError, match="no model is called 'three'; known: one, two"):
        register.remove("three")


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a b", "a/b", "a" * 64, "é", "a\n"])
def test_what_is_no_name(name: str, register: Register, file: Path) -> None:
    with pytest.raises(RegisterError, match="cannot be the name of a model: 1 to 63 of"):
        register.add(named(name, file))
    assert register.all() == {}


def test_names() -> None:
    for name in ("a", "0", "smollm2-135m.q4_1", "a" * 63):
        check_name(name)


def test_a_taken_name_is_not_replaced_unasked(register: Register, file: Path) -> None:
    register.add(named("one", file))
    other = file.with_name("other.gguf")
    other.write_bytes(b"GGUF")
    with pytest.raises(RegisterError, match=f"'one' is {file} already: remove it first"):
        register.add(named("one", other))
    register.add(named("one", other), replace=True)
    assert register.get("one").model.path == str(other)


def test_what_is_removed_leaves_its_file(register: Register, file: Path) -> None:
    register.add(named("one", file))
    assert register.remove("one").model.path == str(file)
    assert register.all() == {}
    assert file.read_bytes() == CONTENT


def test_a_name_whose_file_is_gone(register: Register, file: Path) -> None:
    register.add(named("one", file))
    file.unlink()
    with pytest.raises(RegisterError, match=f"the model of 'one' is gone: {file}; bring it back"):
        register.resolve("one")


def test_states_of_a_file(file: Path) -> None:
    kept = digest_file(file, "typed")
    assert state_of(kept) is State.OK
    file.write_bytes(CONTENT[::-1])
    assert state_of(kept) is State.CHANGED, "of the same size"
    file.write_bytes(b"")
    assert state_of(kept) is State.CHANGED
    file.unlink()
    assert state_of(kept) is State.MISSING


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "heads"
    folder.mkdir()
    (folder / "a.pt").write_bytes(b"one")
    (folder / "config.json").write_bytes(b"{}")
    kept = digest_file(folder, "typed")
    assert kept.bytes == 5
    assert state_of(kept) is State.OK
    (folder / "a.pt").rename(folder / "b.pt")
    assert state_of(kept) is State.CHANGED


def test_a_missing_file_has_no_hash(tmp_path: Path) -> None:
    with pytest.raises(RegisterError, match="no such file or folder"):
        digest_file(tmp_path / "none", "typed")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "models": []}',
        '{"version": 1, "models": [{}]}',
        '{"version": 1, "models": 1}',
        '{"version": 1, "models": [{"name": "../a", "model": {}, "added_at": 1}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_register_is_named_and_kept(text: str, register: Register, file: Path) -> None:
    register.folder.mkdir()
    register.file.write_text(text)
    for fails in (register.all, lambda: register.add(named("one", file)), lambda: register.resolve("one")):
        with pytest.raises(RegisterError, match=r"is no register of models .*mend it, or move it away"):
            fails()
    assert register.file.read_text() == text


def test_a_newer_release_may_add_fields(register: Register, file: Path) -> None:
    register.add(named("one", file))
    content = json.loads(register.file.read_text())
    content["models"][0]["colour"] = content["models"][0]["model"]["colour"] = "red"
    register.file.write_text(json.dumps(content))
    assert register.get("one") == named("one", file)


def test_a_folder_that_cannot_be_written(tmp_path: Path, file: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RegisterError, match="cannot be written: Not a directory"):
        Register(tmp_path / "file" / "below").add(named("one", file))
    with pytest.raises(RegisterError, match="cannot be read"):
        Register(tmp_path / "file").all()


def test_a_register_that_cannot_be_replaced_stays(
    register: Register, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    register.add(named("one", file))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(RegisterError, match=r"models.json: cannot be written: No space left on device"):
            register.add(named("two", file))
    assert set(register.all()) == {"one"}


def _add_many(folder: Path, path: Path, first: int) -> None:
    for n in range(first, first + 20):
        Register(folder).add(named(f"m{n}", path))


def test_models_added_at_once_are_all_kept(register: Register, file: Path) -> None:
    context = multiprocessing.get_context("fork")
    adding = [context.Process(target=_add_many, args=(register.folder, file, n)) for n in (0, 20, 40)]
    for process in adding:
        process.start()
    for process in adding:
        process.join()
        assert process.exitcode == 0
    assert set(register.all()) == {f"m{n}" for n in range(60)}


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == Register().folder == tmp_path / "medusaq"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    assert data_folder() == tmp_path / ".local" / "share" / "medusaq"
