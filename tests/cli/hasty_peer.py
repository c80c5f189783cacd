"""A Celery worker on our queues whose visibility timeout is far below ours."""

from __future__ import annotations

from tasks.queues import make_app
from tasks.settings import get_settings

app = make_app(get_settings())
app.conf.broker_transport_options = {**app.conf.broker_transport_options, "visibility_timeout": 30}
