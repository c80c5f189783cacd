"""A gateway behind Sentinels hears of jobs from whichever Redis is the master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis

from api.service import job_events
from api.service.dependencies import Gateway
from tasks.files.factory import make_store
from tests.support.peers.sentinels import FAILOVER_LIMIT_S, PASSWORD, Sentinels
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack


async def subscribed(server: RedisServer, channel: str) -> None:
    with redis.Redis(port=server.port, password=PASSWORD) as client:
        async with asyncio.timeout(FAILOVER_LIMIT_S):
            while not client.pubsub_channels(channel):
                await asyncio.sleep(0.05)


async def hears(peers: Sentinels) -> None:
    """Of a master that hangs, whose connections stay open, and then of the next one."""
    settings = fast_settings(peers.master, redis_url=f"{peers.url}&socket_timeout=1")
    gateway = Gateway(settings, make_store(settings.files))
    channel = f"{settings.key_prefix}events:{gateway.job_events.id}"
    gateway.job_events.start()
    try:
        await subscribed(peers.master, channel)
        peers.master.freeze()
        await subscribed(peers.replica, channel)
    finally:
        peers.master.thaw()
        await gateway.job_events.stop()
        gateway.close()


def test_a_subscription_leaves_a_master_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "QUIET_S", 0.5)
    peers = Sentinels(tmp_path)
    try:
        peers.start()
        asyncio.run(hears(peers))
    finally:
        peers.close()
