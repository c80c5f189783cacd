"""kombu's channels keep nothing in Redis of what they read, and make one client of their connections."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Message
from kombu.transport.redis import Transport as StandardTransport

from tasks.base.queue_names import GENERATE, queue_of
from tasks.broker.celery_app import make_app
from tasks.broker.transport import SentinelTransport, Transport
from tasks.records.job import Priority
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack
QUEUE = queue_of(Priority.BULK)


class Reader:
    """Reads the messages of one queue, as a worker does."""

    def __init__(self, app: Celery, connection: Connection) -> None:
        self._connection = connection
        self.channel: Any = connection.default_channel
        self.read: list[Message] = []
        self.consumer = app.amqp.TaskConsumer(self.channel, on_message=self.read.append)
        self.consumer.consume()

    def next(self) -> Message:
        self._connection.drain_events(timeout=10)
        return self.read[-1]

    def waiting(self) -> int:
        with self.channel.conn_or_acquire() as client:
            return int(client.llen(QUEUE))


def test_a_message_is_gone_from_redis_once_it_is_read(redis_server: RedisServer) -> None:
    """No other worker puts it back, whatever its visibility timeout, nor does this one at its end."""
    settings = fast_settings(redis_server)
    with make_app(settings) as app:
        with app.connection_for_read() as connection:
            reader = Reader(app, connection)
            app.send_task(GENERATE, queue=QUEUE)
            reader.next()
            with reader.channel.conn_or_acquire() as client:
                assert client.keys(f"{settings.key_prefix}*unacked*") == []
            hasty = {"global_keyprefix": settings.key_prefix, "visibility_timeout": -1}
            with Connection(redis_server.url, transport=StandardTransport, transport_options=hasty) as peer:
                peer.default_channel.qos.restore_visible()
            assert reader.waiting() == 0
        with app.connection_for_read() as connection:
            assert Reader(app, connection).waiting() == 0


def test_the_messages_that_are_read_at_once_have_a_bound(redis_server: RedisServer) -> None:
    with make_app(fast_settings(redis_server)) as app, app.connection_for_read() as connection:
        reader = Reader(app, connection)
        reader.consumer.qos(prefetch_count=2)
        for _ in range(3):
            app.send_task(GENERATE, queue=QUEUE)
        first = reader.next()
        reader.next()
        assert not reader.channel.qos.can_consume()
        assert reader.waiting() == 1
        first.ack()
        assert reader.channel.qos.can_consume()
        reader.next()
        assert len({message.headers["id"] for message in reader.read}) == 3


def test_a_message_that_a_task_rejects_comes_again(redis_server: RedisServer) -> None:
    """As when a worker that shuts down has read one."""
    with make_app(fast_settings(redis_server)) as app, app.connection_for_read() as connection:
        reader = Reader(app, connection)
        app.send_task(GENERATE, queue=QUEUE)
        reader.next().reject_log_error(None, (), True)  # as Request.reject() of Celery calls it
        reader.next().reject_log_error(None, (), False)
        assert reader.read[0].headers["id"] == reader.read[1].headers["id"]
        assert reader.waiting() == 0


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
