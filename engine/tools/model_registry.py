"""The registry of models by name: the files of each name, and their digests at registration.

A folder with `models.json`, written whole and by one process at a time. Nothing here reads a model.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.atomic_write import atomic_write
from common.llama_build import REGISTER, data_folder
from engine.base.errors import RegisterError
from engine.host.file_digest import FileDigest

VERSION = 1  # of its layout
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A registered model. added_at: Unix seconds."""

    name: str
    model: FileDigest
    heads: FileDigest | None = None
    chat_template: str | None = None
    added_at: float = 0.0

    @property
    def files(self) -> dict[str, FileDigest]:
        """By what they are for."""
        return {"model": self.model} | ({} if self.heads is None else {"heads": self.heads})


@dataclass(frozen=True, slots=True)
class Chosen:
    """The files that a worker is to serve. name: None for an unregistered file, served by its stem."""

    path: str | None
    name: str | None = None
    heads: str | None = None
    chat_template: str | None = None


def check_name(name: str) -> None:
    """Raises RegisterError."""
    if not NAME.fullmatch(name):
        rule = "1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or a digit"
        raise RegisterError(f"{name!r} cannot be the name of a model: {rule}")


class Register:
    """The models of a folder; None is the default one. Reads it anew each time."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = data_folder() if folder is None else Path(folder)
        self.file = self.folder / REGISTER

    def all(self) -> dict[str, NamedModel]:
        """By name; empty where there is no register. Raises RegisterError."""
        try:
            text = self.file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise RegisterError(f"{self.file}: cannot be read: {error}") from error
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise ValueError(
                    f"it has the layout {content['version']!r}, and this release knows {VERSION}"
                )
            return {entry["name"]: _entry(entry) for entry in content["models"]}
        except (RegisterError, ValueError, KeyError, TypeError, RecursionError) as error:
            cure = "mend it, or move it away and add the models again"
            raise RegisterError(
                f"{self.file}: is no register of models ({_reason(error)}); {cure}"
            ) from error

    def get(self, name: str) -> NamedModel:
        """Raises RegisterError, which lists the names there are."""
        models = self.all()
        if name not in models:
            raise RegisterError(f"no model is called {name!r}; {_known(models)}")
        return models[name]

    def add(self, model: NamedModel, *, replace: bool = False) -> None:
        """Raises RegisterError for a name that is taken, unless it may be replaced."""
        check_name(model.name)
        with self._locked():
            models = self.all()
            if model.name in models and not replace:
                taken = f"{model.name!r} is {models[model.name].model.path} already"
                raise RegisterError(f"{taken}: remove it first, or say --replace")
            self._write(models | {model.name: model})

    def remove(self, name: str) -> NamedModel:
        """Forget a name; its files stay. Raises RegisterError."""
        with self._locked():
            model, models = self.get(name), self.all()
            del models[name]
            self._write(models)
        return model

    def resolve(self, model: str | None) -> Chosen:
        """The files behind a setting: a registered name, else the path of a file. None is none.

        Raises RegisterError for what is neither, and for a name whose file is gone.
        """
        if model is None:
            return Chosen(None)
        models = self.all() if NAME.fullmatch(model) else {}
        if (found := models.get(model)) is not None:
            for what, file in found.files.items():
                if not Path(file.path).exists():
                    cure = f"bring it back, or add {model!r} again with --replace"
                    raise RegisterError(f"the {what} of {model!r} is gone: {file.path}; {cure}")
            heads = None if found.heads is None else found.heads.path
            return Chosen(found.model.path, found.name, heads, found.chat_template)
        if looks_like_path(model) or Path(model).exists():
            return Chosen(model)
        raise RegisterError(f"{model!r} is neither a file nor the name of a model; {_known(models)}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While it is changed: the kernel gives the lock back when the process ends, however it ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(
                self.folder / f"{REGISTER}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise RegisterError(f"{self.folder}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, models: dict[str, NamedModel]) -> None:
        content = {"version": VERSION, "models": [asdict(models[name]) for name in sorted(models)]}
        try:
            atomic_write(self.file, json.dumps(content, indent=2, ensure_ascii=False), durable=True)
        except OSError as error:
            raise RegisterError(f"{self.file}: cannot be written: {error.strerror}") from error


def looks_like_path(text: str) -> bool:
    """Whether a setting can only mean a file, there or not."""
    return os.sep in text or text.endswith(".gguf") or not NAME.fullmatch(text)


def now() -> float:
    """For added_at, in whole seconds."""
    return float(int(time.time()))


def _entry(entry: dict[str, Any]) -> NamedModel:
    """Without what only a newer release writes. Raises KeyError, TypeError or ValueError."""
    check_name(entry["name"])
    heads, template = entry.get("heads"), entry.get("chat_template")
    return NamedModel(
        entry["name"],
        _file(entry["model"]),
        None if heads is None else _file(heads),
        None if template is None else str(template),
        float(entry["added_at"]),
    )


def _file(entry: dict[str, Any]) -> FileDigest:
    return FileDigest(str(entry["path"]), str(entry["sha256"]), int(entry["bytes"]), str(entry["source"]))


def _known(models: dict[str, NamedModel]) -> str:
    if not models:
        return "none has a name yet: medusaq models add NAME PATH"
    return f"known: {', '.join(sorted(models))}"


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
