"""The server-sent events of one job, as the gateway writes them."""

from __future__ import annotations

import json
from typing import Any

Event = tuple[str, dict[str, Any]]


class EventReader:
    """Reads events from blocks of bytes that may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""

    def read(self, block: bytes) -> list[Event]:
        """The events that are complete with this block."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        found = []
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b": ")
            if field == b"event":
                self._name = value.decode()
            elif field == b"data":
                found.append((self._name, json.loads(value)))
        return found
