"""The order of the queues, and what Flower will show of a message."""

from __future__ import annotations

import json

import pytest

from tasks.errors import PublishFailed
from tasks.job import PREVIEW_CHARS, Priority, preview
from tasks.publish import Publisher
from tasks.queues import IO_QUEUE, QUEUES, InteractiveFirst, list_key
from tasks.settings import Settings
from tasks.store import JobStore
from tests.servers import free_port


def test_interactive_is_always_polled_first() -> None:
    bulk, interactive = QUEUES[Priority.BULK], QUEUES[Priority.INTERACTIVE]
    cycle = InteractiveFirst()
    for names in ([bulk, interactive], [interactive, bulk], [IO_QUEUE, bulk, interactive]):
        cycle.update(names)
        for _ in range(3):
            assert list(cycle.consume(len(names)))[:2] == [interactive, bulk]
            cycle.rotate(interactive)


def test_message_shows_the_prompt_and_carries_the_job_id(
    settings: Settings, store: JobStore, publisher: Publisher
) -> None:
    publisher.publish("job_1", Priority.BULK, "What is\u2026")
    message = json.loads(store.redis.lindex(list_key(settings, Priority.BULK), 0))
    headers = message["headers"]
    assert (headers["id"], headers["task"]) == ("job_1", "medusaq.generate")
    assert headers["argsrepr"] == repr("What is\u2026")
    assert message["content-type"] == "application/json"


def test_publish_without_a_server_fails_in_time(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    publisher = Publisher.connect(nowhere)
    with pytest.raises(PublishFailed, match="job_1"):
        publisher.publish("job_1", Priority.BULK, "x")
    publisher.close()


def test_preview() -> None:
    assert preview({"prompt": " two\n lines "}) == "two lines"
    assert preview({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}) == "b"
    long = preview({"prompt": "x" * 1000})
    assert len(long) == PREVIEW_CHARS
    assert long.endswith("\u2026")
