"""The Celery application of this process, for `celery -A tasks.app ...`."""

from tasks.errors import SettingsError
from tasks.queues import make_app
from tasks.settings import get_settings

try:
    settings = get_settings()
except SettingsError as error:
    raise SystemExit(f"error: {error}") from None

app = make_app(settings)
