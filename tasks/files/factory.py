"""Makes the file store that a URL names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tasks.base.errors import SettingsError
from tasks.files.base import S3, FileStore
from tasks.files.local import LocalStore


def make_store(url: str) -> FileStore:
    """The store of a folder or of s3://bucket/prefix; raises SettingsError where S3 is not installed."""
    if url.startswith(S3):
        if importlib.util.find_spec("s3fs") is None:
            raise SettingsError(f"MEDUSAQ_FILES: {url} needs s3fs: pip install 'medusaq[s3]'")
        from tasks.files.s3 import S3Store

        return S3Store(url)
    return LocalStore(folder_of(url))


def folder_of(url: str) -> Path:
    """That of a URL which does not begin with s3://."""
    return Path(url.removeprefix("file://"))
