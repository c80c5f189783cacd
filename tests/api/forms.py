"""multipart/form-data by hand, right and wrong, and what an upload may leave behind."""

from __future__ import annotations

from pathlib import Path

from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.store.jobs import JobStore

FORM = {"Content-Type": "multipart/form-data; boundary=B"}
PURPOSE = ("purpose", "batch")
FILE = ("file", b"{}\n", "a.jsonl")
END = b"--B--\r\n"


def form(*parts: tuple[str, str | bytes] | tuple[str, bytes, str], end: bytes = END) -> bytes:
    """A body of fields (name, value) and files (name, content, filename)."""
    body = b""
    for name, value, *filename in parts:
        extra = f'; filename="{filename[0]}"' if filename else ""
        head = f'--B\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
        body += head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return body + end


def left_behind(settings: Settings) -> tuple[list[str], list[str], set[str]]:
    """Objects, unfinished objects, and keys of Redis but for the counter."""
    store = JobStore(settings)
    keys = set(store.db.redis.keys(f"{store.db.prefix}file*")) - {f"{store.db.prefix}file_seq"}
    store.close()
    partial = Path(settings.files, ".partial")
    unfinished = [path.name for path in partial.iterdir()] if partial.exists() else []
    return make_store(settings.files).list("files"), unfinished, keys
