"""What a client sees of simulated batches: answers of many lengths that share the slots of a worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cli.views.time_left import Progress

SLOTS = 16
CALL_S, ROW_S = 0.06, 0.004  # of a call, and of each row in it: as of a small model on two cores
TELL_S, LOOK_S = 1.0, 0.5  # between two reports of a worker, and between two looks of a client


@dataclass(frozen=True)
class Look:
    """left: seconds until the end, as it turned out."""

    at: float
    progress: Progress
    left: float


def looks(
    lengths: Sequence[int],
    start_s: float = 3.0,
    prompt_s: float = 0.0,
    slowed: Callable[[float], float] = lambda _: 1.0,
) -> list[Look]:
    """Answers of so many tokens.

    prompt_s: for each, in which no other gets tokens. slowed: at a time, by which factor calls take longer.
    """
    reports = list(_reports(lengths, start_s, prompt_s, slowed))
    end, found, shown = reports[-1][0], [], Progress(0, 0, 0)
    place = 0
    for number in range(int(end / LOOK_S)):
        at = number * LOOK_S
        while reports[place][0] <= at:
            shown = reports[place][1]
            place += 1
        found.append(Look(at, shown, end - at))
    return found


def _reports(
    lengths: Sequence[int], start_s: float, prompt_s: float, slowed: Callable[[float], float]
) -> Iterator[tuple[float, Progress]]:
    waiting, running, at, told = list(lengths), [], start_s, 0.0
    done = tokens = 0
    while waiting or running:
        while waiting and len(running) < SLOTS:
            running.append([0, waiting.pop(0)])
            at += prompt_s
        at += (CALL_S + ROW_S * len(running)) * slowed(at)
        running = [[got + 1, length] for got, length in running]
        ended = [length for got, length in running if got == length]
        running = [one for one in running if one[0] < one[1]]
        done, tokens = done + len(ended), tokens + sum(ended)
        if ended or at - told >= TELL_S:
            told = at
            yield at, Progress(done, 0, tokens, len(running), sum(got for got, _ in running))


def by_chance(count: int, mean: float, most: int = 10_000) -> list[int]:
    """Lengths that end like waiting times."""
    drawn = random.Random(count)
    return [min(most, max(1, int(drawn.expovariate(1 / mean)))) for _ in range(count)]


def between(count: int, least: int, most: int) -> list[int]:
    drawn = random.Random(count)
    return [drawn.randint(least, most) for _ in range(count)]


BATCHES: dict[str, list[Look]] = {
    "few": looks(between(24, 50, 500)),
    "equally long": looks([200] * 40),
    "equally long, many": looks([200] * 400),
    "by chance": looks(by_chance(40, 100)),
    "by chance, many": looks(by_chance(400, 100)),
    "between": looks(between(100, 20, 300)),
    "between, many": looks(between(1000, 20, 300)),
    "short, many": looks(by_chance(2000, 8)),
    "cut by max_tokens": looks(by_chance(100, 300, 256)),
    "long prompts": looks([4] * 300, prompt_s=0.4),
    "long prompts, by chance": looks(by_chance(100, 60), prompt_s=0.3),
    "slow start": looks(between(200, 50, 150), start_s=18.0),
}
