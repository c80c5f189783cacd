"""The persistent state of a run: RESULTS.run/run.json, replaced atomically and durably at each change."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cli.base.errors import BadInput, writing
from common.atomic_write import atomic_write

VERSION = 2


@dataclass(frozen=True)
class RunIdentity:
    """Identifies a run: the input's SHA-256 and the options that affect its results."""

    input_sha256: str
    options: Mapping[str, Any]


@dataclass
class Part:
    """One file of batch lines, and its ids at the gateway. attempt: how often it was given new keys."""

    lines: int
    attempt: int = 0
    file_id: str | None = None
    batch_id: str | None = None

    def reset(self, *, under_new_keys: bool) -> None:
        self.attempt += under_new_keys
        self.file_id = self.batch_id = None


@dataclass
class RunRecord:
    """total: requests, including invalid (bad) ones. created_at: Unix seconds.

    own_max_tokens: lines with a max_tokens of their own, which --max-tokens does not replace.
    """

    identity: RunIdentity
    total: int
    bad: int
    parts: list[Part]
    run_id: str = field(default_factory=lambda: f"run_{uuid.uuid4().hex[:12]}")
    created_at: int = field(default_factory=lambda: int(time.time()))
    own_max_tokens: int = 0

    @property
    def begun(self) -> bool:
        """Whether a batch of it was created at a gateway."""
        return any(part.batch_id is not None for part in self.parts)

    @property
    def sent(self) -> bool:
        """Whether a gateway has a file or a batch of it."""
        return any(part.file_id is not None or part.batch_id is not None for part in self.parts)

    def save(self, path: Path) -> None:
        """Raises CliError."""
        content = {"medusaq_run": VERSION, **asdict(self)}
        with writing(path):
            atomic_write(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n", durable=True)


def load(path: Path, identity: RunIdentity) -> RunRecord | None:
    """The record of the unfinished run, None if there is none; raises BadInput if that is another run."""
    if not path.exists():
        return None
    record = _parse(path)
    if record.identity.input_sha256 != identity.input_sha256:
        raise BadInput(f"the input has changed since {path.parent} was begun; start over with --fresh")
    was, now = record.identity.options, identity.options
    changed = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    if changed:
        before = ", ".join(f"{name} was {json.dumps(was.get(name))}" for name in changed)
        message = f"{path.parent} was begun with other options ({before}); repeat those, or use --fresh"
        raise BadInput(message)
    return record


def binds(path: Path) -> bool:
    """Whether an unfinished run must be gone on with: a gateway may have a part of it, or nobody can tell."""
    try:
        return path.exists() and _parse(path).sent
    except BadInput:
        return True


def batches_of(path: Path) -> Sequence[str]:
    """The batch ids of an unfinished run; empty if there is none."""
    try:
        record = _parse(path)
    except (BadInput, FileNotFoundError):
        return []
    return [part.batch_id for part in record.parts if part.batch_id is not None]


def _parse(path: Path) -> RunRecord:
    try:
        content = json.loads(path.read_bytes())
        version = content.pop("medusaq_run")
        if version == VERSION:
            identity = RunIdentity(**content.pop("identity"))
            parts = [Part(**part) for part in content.pop("parts")]
            return RunRecord(identity, parts=parts, **content)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{path} is not the record of a run; start over with --fresh") from None
    raise BadInput(f"{path} was written by another version; start over with --fresh")
