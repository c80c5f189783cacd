"""Which draft tokens stand. Lossless: the output is what plain decoding would have emitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.sampling import Choice


def sample_and_match(draft: Sequence[int], choose: Callable[[int], Choice]) -> list[Choice]:
    """Walk along the draft for as long as the model itself chooses its tokens.

    choose(i) draws from the target distribution after i accepted draft tokens. For a draft
    d_1..d_n the result is x_1..x_k with x_i = d_i for i < k, and k <= n + 1: the first choice that
    leaves the draft (or follows its end) is emitted too. Each x_i is drawn from the target
    distribution by its own keyed random number, so the draft changes only how many come at once.
    """
    emitted: list[Choice] = []
    for expected in (*draft, None):
        choice = choose(len(emitted))
        emitted.append(choice)
        if choice.token != expected:
            break
    return emitted
