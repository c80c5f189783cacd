"""An engine factory for a worker with another visibility timeout than everybody else's.

It is called before the worker connects, which is the last moment to change what Celery will do.
CHAOS_VISIBILITY_S: the timeout in seconds.
"""

from __future__ import annotations

import os

from engine import EngineConfig
from tests.support import scripted

FACTORY = "tests.chaos.faults.peer:load"
VISIBILITY_S = "CHAOS_VISIBILITY_S"


def load(config: EngineConfig) -> scripted.ScriptedEngine:
    """The factory."""
    from tasks.app import app

    app.conf.broker_transport_options["visibility_timeout"] = float(os.environ[VISIBILITY_S])
    return scripted.load(config)
