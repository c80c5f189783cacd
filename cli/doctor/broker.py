"""The broker of Celery's messages, where it is not Redis."""

from __future__ import annotations

from collections.abc import Iterator

from amqp.exceptions import AccessRefused

from cli.doctor.findings import Finding, fail, ok
from tasks.publish import FAILURES
from tasks.queues import make_app
from tasks.settings import Settings, redacted


def reachable(settings: Settings) -> Iterator[Finding]:
    """Nothing where Redis is the broker."""
    if settings.broker_url is None:
        return
    shown = redacted(settings.broker_url)
    app = make_app(settings)
    try:
        with app.connection_for_write() as connection:
            connection.connect()
    except AccessRefused as error:
        yield fail(
            "broker", f"{shown} refuses: {_short(error)}", "correct user and password in MEDUSAQ_BROKER_URL"
        )
    except FAILURES as error:
        mend = "start it, or set MEDUSAQ_BROKER_URL to where it is; until then jobs are accepted and wait"
        yield fail("broker", f"{shown} does not answer: {_short(error)}", mend)
    else:
        yield ok("broker", f"{shown} answers")
    finally:
        app.close()


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
