"""A model worker with the scripted engine."""

from __future__ import annotations

import pytest

from tasks.base.settings import Settings
from tests.support.workers import Worker, Workers


@pytest.fixture
def worker(settings: Settings, workers: Workers) -> Worker:
    return workers.model(settings)
