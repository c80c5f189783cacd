"""A Celery worker on our queues whose visibility timeout is far below ours."""

from __future__ import annotations

from tasks.base.settings import get_settings
from tasks.broker.celery_app import make_app

app = make_app(get_settings())
app.conf.broker_transport_options = {**app.conf.broker_transport_options, "visibility_timeout": 30}
