"""Shows the live progress of a batch until it has ended."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from rich.console import Console

from cli.gateway.client import check_url
from cli.gateway.retrying_client import WATCH_S, RetryingClient
from cli.views.batch_views import progress_of
from cli.views.progress import Display, updated
from tasks.records.batch import ENDED


def watch(url: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a batch. Raises GatewayError, and GatewayUnreachable after a timeout."""
    try:
        return asyncio.run(_until_ended(check_url(url), batch))
    except KeyboardInterrupt:
        print(f"the batch continues: medusaq batches show {batch['id']} --watch", file=sys.stderr)
        raise


async def _until_ended(url: str, batch: dict[str, Any]) -> dict[str, Any]:
    client = RetryingClient(url)
    total = batch["request_counts"]["total"]
    try:
        with Display(Console(stderr=True), total, progress_of(batch), enabled=True) as display:

            def update() -> None:
                display.update(progress_of(batch), client.last_error, batch["request_counts"]["total"])

            async with updated(update):
                while batch["status"] not in ENDED:
                    batch = await client.request("GET", f"/v1/batches/{batch['id']}", wait_s=WATCH_S)
    finally:
        await client.close()
    return batch
