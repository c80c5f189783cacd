"""Uploads and downloads the files of batches."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from cli.base.errors import BadInput, writing
from cli.gateway.client import check_url, transfer
from common.atomic_write import atomic_file
from medusaq.requests import answer

READ_BYTES = 1024 * 1024


def upload(url: str, file: Path) -> Any:
    """The record of the file at the gateway. Raises BadInput, GatewayError and GatewayUnreachable."""
    try:
        content = file.open("rb")
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None
    with content:
        form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": (file.name, content)}}
        with transfer(check_url(url), "POST", "/v1/files", **form) as response:
            response.read()
            return answer(response)


def fetch(url: str, batch: str, output: Path | None, errors: Path | None) -> None:
    """Download the output and the error file, if given. batch: its URL path. Raises CliError."""
    for path, kind in ((output, "output"), (errors, "errors")):
        if path is not None:
            _fetch(url, f"{batch}/{kind}", path)


def fetch_to_stdout(url: str, path: str) -> None:
    with transfer(check_url(url), "GET", path) as response:
        for block in response.iter_bytes(READ_BYTES):
            sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def _fetch(url: str, source: str, target: Path) -> None:
    with (
        writing(target),
        transfer(check_url(url), "GET", source) as response,
        _opened(target) as file,
    ):
        for block in response.iter_bytes(READ_BYTES):
            file.write(block)


def _opened(target: Path) -> AbstractContextManager[IO[bytes]]:
    if target.exists() and not target.is_file():  # a device such as /dev/null must not be replaced
        return target.open("wb")
    return atomic_file(target, durable=False)
