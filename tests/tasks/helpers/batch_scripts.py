"""What scripts are told of the batch that explorers follow."""

from __future__ import annotations

from typing import Any

BATCH, OWNER = "batch_1", "key_o"


def creating(expires_in_ms: int) -> dict[str, Any]:
    """For batches/create."""
    return {
        "id": BATCH,
        "expires_in_ms": expires_in_ms,
        "idempotency_key": "",
        "body_hash": "",
        "idempotency_ttl_ms": 0,
        "input_file_id": "file",
        "owner": OWNER,
        "max_files": 1,
        "max_files_bytes": 1,
        "max_stored_bytes": 10**9,
    }


def sending(token: str, chunk: int) -> dict[str, Any]:
    """For windows/send: all of a chunk. token: of the leader."""
    return {
        "token": token,
        "id": BATCH,
        "chunk": chunk,
        "offset": 0,
        "next_chunk": chunk + 1,
        "next_offset": 0,
        "model_queue": "",
        "models": [""],
    }
