"""The Celery application of this process, for `celery -A tasks.app ...`."""

from celery import signals

from tasks.base.errors import SettingsError
from tasks.base.json_logs import log_json, quiet_pool
from tasks.base.settings import get_settings
from tasks.broker.celery_app import make_app

try:
    settings = get_settings()
except SettingsError as error:
    raise SystemExit(f"error: {error}") from None

app = make_app(settings)
quiet_pool()

if settings.log_format == "json":
    log_json(settings.log_level)  # for what is said before Celery is ready to log

    @signals.setup_logging.connect  # type: ignore[untyped-decorator]  # Celery has no types
    def _log_json(loglevel: int, **_: object) -> None:
        """In place of Celery's own formats."""
        log_json(loglevel)
