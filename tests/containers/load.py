"""Work for the system, and what became of it: every answer is known beforehand, from a quiet system."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medusaq import Batch, Client, MedusaqError
from tests.support.measuring.lines import lost_and_doubled

LINES = 120
NAMES = [f"line-{number}" for number in range(LINES)]
PAUSE_S = 0.5  # between single jobs
END_S = 1200.0  # limit of a batch
COLOURS = ("red", "orange", "yellow", "green", "blue", "violet", "brown", "black", "white", "grey")
MAX_TOKENS = 24


class Wrong(Exception):
    """What was found, instead of what should be."""


def request(number: int) -> dict[str, Any]:
    prompt = f"Name {number + 2} things that are {COLOURS[number % len(COLOURS)]}."
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_TOKENS, "temperature": 0}


def write_lines(path: Path) -> Path:
    """As a file of OpenAI's batches."""
    lines = (
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": request(number)}
        for number, name in enumerate(NAMES)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@dataclass
class Verdict:
    submitted: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0  # answers that are others than on a quiet system

    @property
    def right(self) -> bool:
        return not (self.lost or self.doubled or self.changed)

    def add(self, other: Verdict) -> None:
        self.submitted += other.submitted
        self.lost += other.lost
        self.doubled += other.doubled
        self.changed += other.changed


def under_way(client: Client, batch: Batch) -> bool:
    """Raises Wrong for one that has ended: nothing can happen to it any more."""
    now = client.batch(batch.id)
    if now.ended:
        raise Wrong(f"the batch was {now.status} before anything could happen to it")
    return now.completed > 0


def answers(client: Client, batch: Batch) -> list[tuple[str, str]]:
    """(custom_id, text) of each line. Raises Wrong for one that does not complete, or in another order."""
    batch = client.wait(batch, END_S)
    if batch.status != "completed":
        raise Wrong(f"the batch is {batch.status}: {batch.error}")
    found = []
    for line in client.output(batch):
        choice = line["response"]["body"]["choices"][0]
        found.append((line["custom_id"], choice["message"]["content"]))
    numbers = [int(name.rpartition("-")[2]) for name, _ in found]
    if numbers != sorted(numbers):
        raise Wrong("the output is not in the order of the input")
    return found


def judge(found: list[tuple[str, str]], known: dict[str, str]) -> Verdict:
    lost, doubled = lost_and_doubled((name for name, _ in found), NAMES)
    changed = {name for name, text in found if text != known.get(name)}
    return Verdict(submitted=LINES, lost=lost, doubled=doubled, changed=len(changed))


@dataclass
class Jobs:
    """Single jobs, one after the other, from a thread of its own until end()."""

    url: str
    known: dict[str, str]
    _ids: dict[str, int] = field(default_factory=dict)
    _troubles: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        with Client(self.url) as client:
            while not self._over.wait(PAUSE_S):
                asked = request(number % LINES)
                try:
                    job = client.submit(asked["messages"], max_tokens=MAX_TOKENS, temperature=0)
                except MedusaqError as error:
                    self._troubles.append(f"a job was not accepted: {error}")
                    return
                if job.id in self._ids:
                    self._troubles.append(f"{job.id} was given to two jobs")
                self._ids[job.id] = number % LINES
                number += 1

    def end(self) -> Verdict:
        """Raises Wrong for a job that was refused or failed."""
        self._over.set()
        assert self._thread, "it has begun"
        self._thread.join()
        verdict = Verdict(submitted=len(self._ids))
        with Client(self.url) as client:
            for name, number in self._ids.items():
                try:
                    text = client.wait(client.job(name), END_S).text
                except MedusaqError as error:
                    verdict.lost += 1
                    self._troubles.append(f"{name}: {error}")
                    continue
                verdict.changed += text != self.known[f"line-{number}"]
        if self._troubles:
            raise Wrong("; ".join(self._troubles))
        return verdict
