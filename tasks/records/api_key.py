"""Records of an API key, its limits, and the result of checking it at a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

NOBODY = "anonymous"  # owner of the work of callers without a key
DEFAULT_MAX_JOBS = 10_000
DEFAULT_MAX_BATCHES = 1000
DEFAULT_MAX_FILES = 100_000  # Redis must hold their records


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one key; None is no limit, except as below. weight: its share of the workers.

    max_jobs: that wait or run at the same time, without batch lines. max_batches: that have not ended.
    max_files: None is DEFAULT_MAX_FILES, which also applies to all callers without a key together.
    max_files_bytes, max_stored_bytes (of records in Redis): None is the value of the settings.
    """

    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_jobs: int | None = DEFAULT_MAX_JOBS
    max_batches: int | None = DEFAULT_MAX_BATCHES
    weight: float = 1.0
    max_files: int | None = None
    max_files_bytes: int | None = None
    max_stored_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its usage. Times are Unix seconds; tokens_today: spent or reserved for live jobs."""

    id: str
    name: str
    shown: str
    created_at: float
    revoked_at: float | None
    limits: Limits
    tokens_today: int = 0
    jobs: int = 0
    batches: int = 0
    files: int = 0
    files_bytes: int = 0
    stored_bytes: int = 0

    @classmethod
    def from_hash(
        cls,
        fields: Mapping[str, str],
        tokens_today: int = 0,
        jobs: int = 0,
        batches: int = 0,
        files: int = 0,
        files_bytes: int = 0,
        stored_bytes: int = 0,
    ) -> ApiKey:
        revoked = fields.get("revoked_at")
        return cls(
            id=fields["id"],
            name=fields["name"],
            shown=fields["shown"],
            created_at=int(fields["created_at"]) / 1000,
            revoked_at=int(revoked) / 1000 if revoked else None,
            limits=Limits(
                _number(fields["requests_per_minute"]),
                _number(fields["tokens_per_day"]),
                _number(fields["max_jobs"]),
                _number(fields.get("max_batches", "")),
                float(fields["weight"]),
                _number(fields.get("max_files", "")),
                _number(fields.get("max_files_bytes", "")),
                _number(fields.get("max_stored_bytes", "")),
            ),
            tokens_today=tokens_today,
            jobs=jobs,
            batches=batches,
            files=files,
            files_bytes=files_bytes,
            stored_bytes=stored_bytes,
        )


class KeyStatus(StrEnum):
    """The result of checking the key of a request."""

    NEVER = "never"  # no key was ever created
    NONE = "none"  # all keys are revoked
    UNKNOWN = "unknown"
    OK = "ok"
    LIMITED = "limited"  # too many requests


@dataclass(frozen=True, slots=True)
class Rate:
    """State of a rate limit. left: what remains; reset_s: seconds until all of it is available again."""

    limit: int
    left: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Admission:
    """key_id: set with OK and LIMITED. retry_s: seconds until the next request is allowed."""

    status: KeyStatus
    key_id: str = ""
    requests: Rate | None = None
    tokens: Rate | None = None
    retry_s: float = 0.0


def _number(text: str) -> int | None:
    return int(text) if text else None
