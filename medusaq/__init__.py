"""A client of the gateway for Python programs: rows, jobs, streams and batches, over HTTP.

    from medusaq import Client

    with Client() as client:
        for row in client.run(["Why is the sky blue?"], max_tokens=64):
            print(row["answer"])

AsyncClient is the same for asyncio. docs/reference/python.md describes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medusaq.async_client import AsyncClient
    from medusaq.client import Client
    from medusaq.errors import (
        BatchFailed,
        GatewayError,
        GatewayUnreachable,
        JobFailed,
        MedusaqError,
        WaitTimeout,
    )
    from medusaq.records import Batch, Job

_MODULES = {
    "AsyncClient": "async_client",
    "Batch": "records",
    "BatchFailed": "errors",
    "Client": "client",
    "GatewayError": "errors",
    "GatewayUnreachable": "errors",
    "Job": "records",
    "JobFailed": "errors",
    "MedusaqError": "errors",
    "WaitTimeout": "errors",
}

__all__ = [
    "AsyncClient",
    "Batch",
    "BatchFailed",
    "Client",
    "GatewayError",
    "GatewayUnreachable",
    "Job",
    "JobFailed",
    "MedusaqError",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: the command imports the errors alone, without httpx."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
