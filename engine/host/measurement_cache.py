"""A cache of measurements of this machine, kept between runs. If it fails, values are measured again.

They are measured again from time to time too, and soon after one beside other load: else whatever was fastest
on a busy machine would be taken for ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from common.atomic_write import atomic_write
from common.llama_build import cache_folder
from common.processor import processor, usable_cores
from engine.base.errors import ModelLoadError

log = logging.getLogger(__name__)

KEPT_S = 7 * 86_400.0  # then firmware, power settings or neighbours may be others
BUSY = 0.25  # share of the cores that others took while it was measured
BUSY_KEPT_S = 3_600.0


def cache_path(kind: str, key: str, suffix: str) -> Path:
    """Path of the cached file for this key, whether or not it exists."""
    return cache_folder() / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}{suffix}"


def read_measurement(kind: str, key: str) -> Any:
    """The content that write_measurement() saved under this key; None if it is absent, unreadable or old."""
    kept = read_entry(kind, key)
    try:
        return kept if kept and 0 <= time.time() - kept["measured"] < _kept_s(kept) else None
    except KeyError:  # kept by an earlier version
        return None
    except TypeError as error:
        log.warning("%s-*.json: measured again, since it is damaged: %s", kind, error)
        return None


def _kept_s(kept: dict[str, Any]) -> float:
    return BUSY_KEPT_S if kept["others"] > BUSY else KEPT_S


def read_entry(kind: str, key: str) -> Any:
    """The content under this key, however old; None if it is absent or unreadable."""
    path = cache_path(kind, key, ".json")
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s: measured again, since it cannot be read: %s", path, error)
        return None


def write_measurement(kind: str, key: str, content: dict[str, Any], others: float = 0.0) -> None:
    """others: the share of the cores that other processes took meanwhile."""
    if others > BUSY:
        log.info(
            "others used %.0f%% of the cores while %s was measured: kept for an hour", others * 100, kind
        )
    write_entry(kind, key, {"measured": time.time(), "others": others, **content})


def write_entry(kind: str, key: str, content: dict[str, Any]) -> None:
    path = cache_path(kind, key, ".json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps({"key": key, **content}), durable=False)
    except OSError as error:
        log.warning("%s: cannot be kept: %s", path, error)


def identity(path: str) -> str:
    """Identifies a version of a file by path, size and time of change. Raises ModelLoadError."""
    try:
        file = Path(path).resolve()
        stat = file.stat()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    return repr((str(file), stat.st_size, stat.st_mtime_ns))


def machine() -> str:
    """What speed depends on beside the model and its devices: processor, cores of this process."""
    return f"{processor()}, {usable_cores()} cores"
