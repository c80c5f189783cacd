"""That a webhook which is unsigned, changed, unasked for or told under two ids is seen."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import httpx
import pytest

from tasks.records.webhook import new_secret, signed
from tests.chaos.clients.hooks import REFUSED_EVERY, Hooks
from tests.support.peers.receivers import receiving

SECRET, JOB, EVENT = new_secret(), "job_1", "job.succeeded"


@dataclass(frozen=True)
class Message:
    """As it has to be, unless something else is said."""

    object_id: str = JOB
    event: str = EVENT
    more: str = ""
    hook_id: str = "evt_1"
    secret: str = SECRET
    at: float = 0.0  # seconds from now

    def send(self, url: str, status: int = 200) -> None:
        data = {"id": self.object_id, "more": self.more}
        body = json.dumps({"id": self.hook_id, "type": self.event, "data": data}).encode()
        headers = signed(self.hook_id, int(time.time() + self.at), body, [self.secret])
        assert httpx.post(url, content=body, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("messages", "trouble", "twice"),
    [
        ([Message()], "", []),
        ([Message(), Message()], "", []),
        ([Message(at=-3600)], "", []),
        ([Message(), Message(secret=new_secret())], "another signature", []),
        ([Message(), Message(more="x")], "another body", []),
        ([Message(), Message(hook_id="evt_2")], "another body", [JOB]),
        ([Message(event="job.failed")], "told of job.failed", []),
        ([Message(object_id="job_2")], "not of None", []),
    ],
)
def test_what_came(messages: list[Message], trouble: str, twice: list[str]) -> None:
    with receiving() as receiver:
        hooks = Hooks(receiver)
        for message in messages:
            message.send(hooks.url)
        troubles = hooks.wrong({JOB: EVENT}, SECRET)
        assert len(troubles) == bool(trouble)
        assert trouble in "".join(troubles)
        assert hooks.twice() == twice
        assert sum(map(len, hooks.told.values())) == len(messages)


def test_what_is_refused_at_first_must_come_again() -> None:
    with receiving() as receiver:
        hooks = Hooks(receiver)
        for number in range(1, REFUSED_EVERY):
            Message(f"job_{number}").send(hooks.url)
        last = Message("job_last")
        last.send(hooks.url, 503)
        assert "job_last" not in hooks.told
        last.send(hooks.url)
        assert hooks.told.keys() - {f"job_{number}" for number in range(REFUSED_EVERY)} == {"job_last"}
        Message("job_last", hook_id="evt_2").send(hooks.url)
        assert hooks.twice() == ["job_last"]
