"""How much time speculation may lose before it is paused."""

from __future__ import annotations

LOSS_BOUND = 0.01  # share of all time that may be lost to speculation
# The balances are in durations of a plain step.
# Upper limit: with less, some wrong drafts in one text would forbid the right ones in the next.
CREDIT = 20.0
ALLOWANCE = 8.0  # initial balance
GRACE = 6.0  # overdraft up to which drafts that cost no time to make are still verified


class RegretBudget:
    """Limits what speculation may lose against plain decoding. The unit is the duration of a plain step.

    Losses reduce the balance; gains raise it, and so does time: LOSS_BOUND of it may be lost. With a negative
    balance, sources that take time to draft are not used (strained); below -GRACE no source is (paused).
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
        """Record a step's duration, and the one of plain decoding for the same tokens."""
        self._balance = min(self._balance + LOSS_BOUND * took + plain - took, CREDIT)
