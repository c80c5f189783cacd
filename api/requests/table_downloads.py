"""How many tables of results a key may have made or sent at a time. For one event loop."""

from __future__ import annotations

from collections import Counter

from api.http.errors import TooManyRequests
from tables.conversion.seats import Seats

MOST_TABLES = 4  # of one key: each is a temporary file until it is sent


class TableDownloads:
    """seats: of the processes that make tables."""

    def __init__(self) -> None:
        self.seats = Seats()
        self._open: Counter[str] = Counter()

    def begin(self, owner: str) -> None:
        """Raises TooManyRequests."""
        if self._open[owner] >= MOST_TABLES:
            raise TooManyRequests(f"{MOST_TABLES} tables of this API key are being made or sent already")
        self._open[owner] += 1

    def end(self, owner: str) -> None:
        self._open -= Counter({owner: 1})
