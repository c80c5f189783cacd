"""kombu's channels make one client, of the connections that they have now."""

from __future__ import annotations

import pytest
from kombu import Connection

from tasks.broker.celery_app import make_app
from tasks.broker.one_client import SentinelTransport, Transport
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack


def test_a_channel_makes_one_client_until_its_connections_are_lost(redis_server: RedisServer) -> None:
    with make_app(fast_settings(redis_server)) as app, app.connection_for_write() as connection:
        assert type(connection.transport) is Transport
        channel = connection.default_channel
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is second
            assert first is not channel.client  # of the connection that the event loop reads
        channel._disconnect_pools()
        with channel.conn_or_acquire() as third:
            assert third is not first
            assert third.connection_pool is channel.pool
            assert third.ping()


@pytest.mark.parametrize(
    ("url", "transport"), [("rediss://h", Transport), ("sentinel://h:1;sentinel://h:2", SentinelTransport)]
)
def test_urls_of_other_kinds_have_such_channels_too(
    redis_server: RedisServer, url: str, transport: type[Transport | SentinelTransport]
) -> None:
    make_app(fast_settings(redis_server)).close()
    assert Connection(url).get_transport_cls() is transport
