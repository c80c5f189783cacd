"""Calls of the store that wait until Redis is back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from celery.exceptions import Ignore

from tasks.base.errors import StoreUnavailable

log = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0  # a Redis that is back is found within this

T = TypeVar("T")


def retry_until_available(pause: Callable[[float], bool], call: Callable[[], T]) -> T:
    """Retry until Redis answers. If a lease ran out meanwhile, Redis refuses the fencing token.

    pause: sleeps, and says whether the worker may still wait. Raises Ignore once it may not.
    """
    seconds = RETRY_FIRST_S
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            if not pause(seconds):
                log.error("gave up on Redis while shutting down: %s", error)
                raise Ignore from None
            seconds = min(2 * seconds, RETRY_MOST_S)
