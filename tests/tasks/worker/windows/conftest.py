"""A batch under way in a Redis of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.base.settings import Settings
from tests.tasks.worker.windows.sent import Sent


@pytest.fixture
def sent(settings: Settings) -> Iterator[Sent]:
    made = Sent.begun(settings)
    yield made
    made.store.close()
