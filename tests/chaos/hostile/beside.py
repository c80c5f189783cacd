"""Phases of an honest key, alone and beside a hostile one, on one stack."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import IO

from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.queue_stats import queue_stats
from tests.chaos.hostile.behaviours import BEHAVIOURS
from tests.chaos.hostile.honest import Honest, Served
from tests.chaos.stack import Stack
from tests.support.peers.receivers import Receiver
from tests.support.workers import ROOT

WARM_S = 3.0  # imports, connections and caches
BEGIN_S = 2.0  # until a behaviour is in full swing
SETTLE_S = 120.0
LOOK_S = 0.2
END_S = 30.0
HOSTILE_PER_MINUTE = 600  # requests, of the key that has such a limit
MAIN = "job"  # the kind with columns of its own
LOWEST_PRIORITY = ("nice", "-n", "19")  # its own computing must not pass for the system's
LARGEST_RATIO = 2.0  # of the p95 of jobs beside one behaviour and alone


@dataclass
class Beside:
    """Pairs of phases, and the answers to the hostile key. unsettled: its work delayed others after it."""

    alone: list[Served] = field(default_factory=list)
    beside: list[Served] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    unsettled: bool = False

    @property
    def troubles(self) -> list[str]:
        return [trouble for served in (*self.alone, *self.beside) for trouble in served.troubles]

    @property
    def kinds(self) -> list[str]:
        return list(self.alone[0].took_s)

    def ratio(self, kind: str) -> float:
        """Of the p95 beside and alone: the median over the pairs."""
        pairs = zip(self.alone, self.beside, strict=True)
        return median(p95(beside.took_s[kind]) / p95(alone.took_s[kind]) for alone, beside in pairs)


def p95(values: list[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def p50_and_p95(phases: list[Served], kind: str) -> tuple[float, float]:
    """Medians over the phases, in seconds."""
    each = [served.took_s[kind] for served in phases]
    return median(median(values) for values in each), median(p95(values) for values in each)


class Bench:
    """A stack with an honest key and hostile ones."""

    def __init__(self, stack: Stack, receiver: Receiver) -> None:
        self._keys = KeyStore(stack.store.db)
        self._port, self._store = stack.settings.port, stack.store
        _, key = self._keys.create("honest", Limits())
        self.honest = Honest(stack.url, key, receiver)

    def pairs(self, name: str, count: int, seconds: float) -> Beside:
        """Each of a phase alone and one beside this behaviour."""
        found = Beside()
        self.honest.phase(WARM_S)
        for _ in range(count):
            found.alone.append(self.honest.phase(seconds))
            per_minute = HOSTILE_PER_MINUTE if BEHAVIOURS[name].limited else None
            with self.attacked([name], per_minute) as answers:
                time.sleep(BEGIN_S)
                found.beside.append(self.honest.phase(seconds))
            found.answers.update(answers)
            found.unsettled = not self._settled()
            if found.unsettled:
                break
        return found

    def _settled(self) -> bool:
        """Waits until the hostile key's jobs have ended and the honest one's take no longer than alone."""
        give_up = time.monotonic() + SETTLE_S
        while sum(queue_stats(self._store.db).waiting.values()):
            if time.monotonic() > give_up:
                return False
            time.sleep(LOOK_S)
        return self.honest.settled(give_up - time.monotonic())

    @contextmanager
    def attacked(
        self, names: list[str], per_minute: int | None = None, before: Sequence[str] = LOWEST_PRIORITY
    ) -> Iterator[Counter[str]]:
        """Meanwhile a process behaves so under a key of its own, which is revoked at the end.

        per_minute: requests that the key may send. before: a command that becomes the process. Yields its
        answers by class, up to date once a second and at the end.
        """
        limits = Limits(requests_per_minute=per_minute)
        key, secret = self._keys.create("hostile", limits)
        for make in filter(None, (BEHAVIOURS[name].before for name in names)):
            make(self._store, key.id)
        attacker = [sys.executable, "-m", "tests.chaos.hostile.attacker", str(self._port), secret, *names]
        process = subprocess.Popen(
            [*before, *attacker], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        answers: Counter[str] = Counter()
        reader = threading.Thread(target=_follow, args=(process.stdout, answers))
        reader.start()
        try:
            yield answers
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(END_S) == 0, "the hostile client broke off"
        finally:
            process.kill()
            reader.join()
            process.wait()
            self._keys.revoke(key.id)


def _follow(told: IO[str], answers: Counter[str]) -> None:
    """Keeps the counts of the last line."""
    with told:
        for line in told:
            answers.update({name: count - answers[name] for name, count in json.loads(line).items()})
