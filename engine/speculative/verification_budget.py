"""How many draft tokens a step should verify, and which: pure functions of survivals and T(n).

With R requests and a call of n rows taking T(n), a step that verifies the m likeliest of all
candidates emits R + s1 + .. + sm tokens in expectation: G(m) = (R + s1 + .. + sm) / (T(R + m) + spent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace

from engine.core.draft_source import ROOT, Tree

MARGIN = 0.04  # G must beat plain decoding by so much: below it, the estimate is as likely wrong as right
LOSS_BOUND = 0.01  # of the time, at most lost to speculation that did not pay
# Plain steps' time: most that past gains may be set against later losses. With little of it, some wrong
# guesses in one text would forbid the right ones in the next.
CREDIT = 20.0
ALLOWANCE = 8.0  # and the loss allowed before the first gain
GRACE = 6.0  # debt in which drafts that cost nothing to make are still verified


def bucket(rows: int) -> int:
    """The next shape at or above. Few shapes let llama.cpp keep its graph from call to call, and its CPU
    kernels take rows by fours: 13 rows take longer than 16.
    """
    if rows <= 8:
        return rows
    step = 4 if rows <= 32 else 8 if rows <= 64 else 16
    return -(-rows // step) * step


def choose_nodes(
    requests: int,
    survivals: Many[float],
    seconds: Callable[[int], float],
    *,
    rows: int = 0,
    spent: float = 0.0,
    margin: float = MARGIN,
) -> int:
    """The m that maximises G(m); 0 when none beats plain decoding by the margin.

    survivals: of all candidates, falling. seconds: T(n). rows: of the call without them, if not one a
    request. spent: seconds that making the candidates took, which no choice brings back.
    """
    rows = rows or requests
    plain = requests / (seconds(rows) + spent)
    best, best_m, expected = plain * (1 + margin), 0, float(requests)
    for m, survival in enumerate(survivals, 1):
        expected += survival
        if rows + m == bucket(rows + m):
            speed = expected / (seconds(rows + m) + spent)
            if speed > best:
                best, best_m = speed, m
    return best_m


def floor(requests: int, seconds: Callable[[int], float], nodes: int) -> float:
    """The least mean survival at which 1 to `nodes` more rows pay for themselves."""
    plain = seconds(requests)
    return min((seconds(requests + m) / plain - 1) * requests / m for m in range(1, nodes + 1))


def pool(trees: Many[Tree]) -> list[tuple[int, int]]:
    """All nodes as (tree, node), the likeliest first; every prefix of it is a forest.

    No child outranks its parent: where a source says otherwise, it counts as just as likely.
    """
    ranked = []
    for t, tree in enumerate(trees):
        capped: list[float] = []
        for i, node in enumerate(tree):
            above = 1.0 if node.parent == ROOT else capped[node.parent]
            capped.append(min(node.survival, above))
            ranked.append((-capped[i], t, i))
    return [(t, i) for _, t, i in sorted(ranked)]


def take(trees: Many[Tree], chosen: Iterable[tuple[int, int]]) -> list[Tree]:
    """The chosen nodes alone, each tree's in its own order; parents must be among them."""
    wanted: list[set[int]] = [set() for _ in trees]
    for t, i in chosen:
        wanted[t].add(i)
    taken: list[Tree] = []
    for tree, nodes in zip(trees, wanted, strict=True):
        place = {ROOT: ROOT}
        kept: Tree = []
        for i in sorted(nodes):
            place[i] = len(kept)
            kept.append(replace(tree[i], parent=place[tree[i].parent]))
        taken.append(kept)
    return taken


def merge(trees: Iterable[Tree]) -> Tree:
    """One tree of several for the same request: a path that two hold becomes one, at the better chance."""
    merged: Tree = []
    places: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for tree in trees:
        place = {ROOT: ROOT}
        for i, node in enumerate(tree):
            parent = place[node.parent]
            at = places.get((parent, node.token))
            if at is None:
                at = places[parent, node.token] = len(merged)
                merged.append(replace(node, parent=parent))
            elif node.survival > merged[at].survival:
                merged[at] = replace(node, parent=parent)
            place[i] = at
    return merged


class TimeDebt:
    """What speculation has lost against plain decoding, in plain steps' time.

    A loss is repaid by gains, and by time: LOSS_BOUND of all time may be lost. In debt, drafts that cost
    time to make are not asked for, and beyond GRACE of it none are: it takes wrong predictions to lose by
    verifying, and those are corrected soon.
    """

    def __init__(self) -> None:
        self._balance = ALLOWANCE

    @property
    def strained(self) -> bool:
        return self._balance < 0

    @property
    def paused(self) -> bool:
        return self._balance < -GRACE

    def step(self, took: float, plain: float) -> None:
        """Note a step's time, and what plain decoding would have taken for the same tokens."""
        self._balance = min(self._balance + LOSS_BOUND * took + plain - took, CREDIT)
