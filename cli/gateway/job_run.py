"""Runs one job to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from cli.base.errors import CliError, Interrupted
from cli.gateway.client import call
from medusaq.errors import MedusaqError
from tasks.records.job import INCOMPLETE, TERMINAL, Status

WAIT_S = 30  # of one long poll


class JobFailed(CliError):
    """A job ended without an answer."""


def run_job(url: str, body: Mapping[str, Any], *, may_be_cut: bool = False) -> dict[str, Any]:
    """The result of a job, which is cancelled when the command is interrupted.

    may_be_cut: JSON that is cut off at max_tokens is an answer too. Raises JobFailed, and GatewayError if
    the gateway refuses it.
    """
    record = call(url, "POST", "/v1/jobs", json=body)
    path = f"/v1/jobs/{record['id']}"
    try:
        while record["status"] not in TERMINAL:
            record = call(url, "GET", path, wait_s=WAIT_S)
    except Interrupted:
        with contextlib.suppress(MedusaqError):
            call(url, "POST", f"{path}/cancel")
        raise
    result: dict[str, Any] | None = record["result"]
    error = record["error"]
    if may_be_cut and error is not None and error["code"] == INCOMPLETE and result is not None:
        return result
    if error is not None:
        raise JobFailed(f"{error['code']}: {error['message']}")
    if record["status"] != Status.SUCCEEDED or result is None:
        raise JobFailed(f"the job was {record['status']}")
    return result
