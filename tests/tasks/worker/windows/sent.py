"""Windows whose lines are scripts of the scripted engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tasks.records.packed_line import Line
from tasks.records.window import NewWindow
from tests.support.workers import Worker, wait_until
from tests.tasks.helpers.windows import LEADER, Windows

MAX_TOKENS = 10


class Sent(Windows):
    """Whose lines are scripts of the engine."""

    def scripts(self, *windows: Sequence[str], first: int = 1, model: str = "", **request: Any) -> list[str]:
        """Windows of these prompts, the next of the batch; their ids. first: number of the first line."""
        new, ids, number = [], [], first
        for prompts in windows:
            ids.append(self.id_of(number))
            lines = []
            for prompt in prompts:
                body = json.dumps({"prompt": prompt, "max_tokens": MAX_TOKENS, **request})
                lines.append(Line(number, f"id-{number}", model, body, MAX_TOKENS).packed(number))
                number += 1
            new.append(NewWindow(model, lines))
        after = (self.batch.chunk + 1, 0)
        self.batches.lead(LEADER, {"": 1000})
        assert self.windows.send(LEADER, self.batch, after, new)
        self.batch = replace(self.batch, chunk=after[0], offset=after[1])
        return ids

    def ended(self, lines: int, report: Worker | None = None) -> dict[int, dict[str, Any]]:
        """Entries by line number, once there are so many."""
        told = (lambda: report.text()) if report else (lambda: str(self.results()))
        wait_until(lambda: self.number_ended() >= lines, report=told)
        found = self.results()
        assert len({number for number, _, _ in found}) == len(found) == lines, "each line ends once"
        return {number: entry for number, _, entry in found}

    def number_ended(self) -> int:
        """Lines that have ended. What an io worker does for lost windows is done first."""
        self.store.reconcile()
        return len(self.results())

    def texts(self, lines: int, report: Worker | None = None) -> dict[int, str | None]:
        """The answer of each line, or its error code."""
        entries = self.ended(lines, report)
        return {number: answer_of(entry) for number, entry in entries.items()}


def answer_of(entry: dict[str, Any]) -> str:
    if entry["error"] is not None:
        return str(entry["error"]["code"])
    body = entry["response"]["body"]
    return str(body["error"]["code"] if "error" in body else body["choices"][0]["message"]["content"])
