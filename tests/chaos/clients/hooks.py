"""A receiver of the load's webhooks, which keeps what it is told of each job and batch."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook as Signer

from tests.support.peers.receivers import Received, Receiver

REFUSED_EVERY = 10


class Hooks:
    """Refuses every tenth job or batch at the first attempt, so that at any time some wait for another.

    told: of a job or batch, by its id, all that was taken. refused: what was not.
    """

    def __init__(self, receiver: Receiver) -> None:
        self.url = receiver.url
        self.told: dict[str, list[Received]] = {}
        self.refused: dict[str, Received] = {}
        self._lock = threading.Lock()
        self._firsts = 0
        receiver.answer = self._keep

    def _keep(self, message: Received) -> tuple[int, dict[str, str]]:
        object_id = json.loads(message.body)["data"]["id"]
        with self._lock:
            if object_id not in self.told and object_id not in self.refused:
                self._firsts += 1
                if self._firsts % REFUSED_EVERY == 0:
                    self.refused[object_id] = message
                    return 503, {}
            self.told.setdefault(object_id, []).append(message)
        return 200, {}

    def wrong(self, asked: Mapping[str, str], secret: str) -> list[str]:
        """What should not have come so. asked: of what has a webhook the event of its end."""
        signer = Signer(secret)
        troubles = []
        for object_id, messages in self._all():
            if not all(_signed(message, signer) for message in messages):
                troubles.append(f"a webhook of {object_id} has another signature")
            if len({message.body for message in messages}) > 1:
                troubles.append(f"the webhook of {object_id} came again with another body")
            event = json.loads(messages[0].body)["type"]
            if event != asked.get(object_id):
                troubles.append(f"{object_id}: told of {event}, not of {asked.get(object_id)}")
        return troubles

    def twice(self) -> list[str]:
        """Ids of which it was told under more than one webhook-id."""
        return [
            object_id
            for object_id, messages in self._all()
            if len({message.headers["webhook-id"] for message in messages}) > 1
        ]

    def _all(self) -> list[tuple[str, list[Received]]]:
        """Of each what came, the refused too."""
        with self._lock:
            first = {object_id: [message] for object_id, message in self.refused.items()}
            return [(one, first.get(one, []) + self.told.get(one, [])) for one in {**first, **self.told}]


def _signed(message: Received, signer: Signer) -> bool:
    """Not by `verify`, which holds the time against a clock: some cases set that of Redis."""
    headers = message.headers
    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), tz=UTC)
    expected = signer.sign(headers["webhook-id"], at, message.body.decode())
    return expected in headers["webhook-signature"].split()
