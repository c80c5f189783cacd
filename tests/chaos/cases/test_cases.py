"""Every case in small, one after the other on one stack under one load: nothing may be lost or doubled.

What `make chaos` measures is not measured here: no time is too long but one in which all must have ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.cases import processes, surroundings, windows  # noqa: F401  each fills CASES
from tests.chaos.cases.case import CASES
from tests.chaos.judging.verdict import so_far
from tests.chaos.run import Run, Size, Skipped, running
from tests.chaos.stack import Needs, Stack
from tests.support.servers import FAST
from tests.support.tuned import constants

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]
SMALL = Size(strikes=1, jobs_per_s=4.0, lines=20, delay_s=0.2, outage_s=1.5, large=3000, minutes=0.0)
# All have short times here; and no test is left to chance.
LEFT_OUT = ("kill-worker-fast", "soak")
# Those that `make test` tries too.
BRIEF = (
    "kill-gateway-stream",
    "clock-redis",
    "kill-worker",
    "kill-in-window",
    "kill-io-finalizing",
    "poison",
    "redis-restart",
    "redis-frozen",
    "disk-full",
    "two-leaders",
)
# What a killed sender held is given to another after twice this time.
FAST_WEBHOOKS = constants({"tasks.webhooks.store.SCHEDULE": {"timeout_s": 2.0, "retries_s": [1.0] * 20}})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    needs = Needs(proxied=True, disk=True, redis_disk=True, clocks=True)
    with (
        Stack(tmp_path_factory.mktemp("chaos"), needs, lanes=True, env=FAST_WEBHOOKS, **FAST) as stack,
        running(stack, SMALL) as run,
        run.under_load(),
    ):
        yield run


assert {*BRIEF} <= CASES.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in BRIEF else pytest.mark.thorough)
        for name in CASES
        if name not in LEFT_OUT
    ],
)
def test_it_recovers(run: Run, name: str) -> None:
    faults, recovered = run.faults, len(run.recoveries_s)
    try:
        CASES[name].act(run)
    except Skipped as reason:
        pytest.skip(str(reason))
    run.tally += so_far(run.load, run.client)  # before results are too old, by a clock that was set
    run.tally.pending.clear()
    troubles = run.troubles + run.load.troubles
    run.troubles.clear()  # each fails the case in which it was seen, and no later one
    run.load.troubles.clear()
    assert troubles == [], run.stack.tails()
    assert len(run.recoveries_s) - recovered == run.faults - faults > 0


def test_nothing_was_lost_or_doubled(run: Run) -> None:
    run.load.end()
    tally = run.outcome().tally
    assert (tally.lost, tally.doubled, tally.troubles) == (0, 0, []), run.stack.tails()
    assert tally.submitted > 0
