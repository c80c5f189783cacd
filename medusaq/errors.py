"""Errors of the client. Each message is one line.

MedusaqError
├── GatewayError        the gateway refused a request
├── GatewayUnreachable  no gateway answered in time
├── JobFailed           a job ended without an answer
├── BatchFailed         the gateway could not run a batch at all
└── WaitTimeout         the end did not come within the caller's time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medusaq.records import Batch, Job


class MedusaqError(Exception):
    """The request failed."""


class GatewayError(MedusaqError):
    """The gateway answered with an error that a retry cannot fix.

    status: of HTTP. error: the object that the gateway sent: message, type, param and code.
    """

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(" ".join(str(error.get("message") or f"HTTP {status}").split()))
        self.status = status
        self.error = dict(error)


class GatewayUnreachable(MedusaqError):
    """No gateway answered at the address within the time."""


class JobFailed(MedusaqError):
    """A job failed, was cancelled, or expired; its text so far is in job.text."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"{job.id}: {job.error or f'the job was {job.status}'}")
        self.job = job


class BatchFailed(MedusaqError):
    """The gateway could not use the input of a batch."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(f"{batch.id}: {batch.error or 'the batch failed'}")
        self.batch = batch


class WaitTimeout(MedusaqError):
    """What was waited for goes on at the gateway."""
