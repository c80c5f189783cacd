"""An honest key beside hostile ones: all that it asks is answered, once and rightly, whatever they do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.chaos.hostile.behaviours import BEHAVIOURS
from tests.chaos.hostile.beside import Bench, Beside, p95
from tests.chaos.hostile.honest import Served
from tests.chaos.hostile.table import row
from tests.chaos.stack import Stack
from tests.support.peers.receivers import receiving

# What holds connections, threads and senders rather than the processor.
TOGETHER = ("waits", "slow-heads", "slow-bodies", "slow-uploads", "cancels", "hooks-interim")
PHASE_S = 1.0  # and again, until the hostile clients were answered and refused
LIMIT_S = 90.0  # a busy machine may not get to hostile clients in one phase


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with (
        Stack(tmp_path_factory.mktemp("hostile"), models=1) as stack,
        receiving(host="127.9.9.9") as receiver,
    ):
        yield Bench(stack, receiver)


@pytest.mark.stack
def test_the_honest_key_is_served(bench: Bench) -> None:
    give_up = time.monotonic() + LIMIT_S
    with (
        bench.attacked(["flood-limited"], per_minute=60, before=()) as limited,
        bench.attacked([*TOGETHER], before=()) as others,
    ):
        answered, asked = False, Counter[str]()
        while not answered and time.monotonic() < give_up:
            served = bench.honest.phase(PHASE_S)
            assert served.troubles == []
            asked.update({kind: len(took) for kind, took in served.took_s.items()})
            # A phase may be over before its threads have begun.
            answered = all(asked[kind] for kind in served.took_s) and all(
                answers["2xx"] and answers["4xx"] for answers in (limited, others)
            )
        assert min(asked.values()) > 0, "each kind was asked for"
    for answers in (limited, others):
        assert answers["2xx"] > 0
        assert answers["4xx"] > 0, "refused by a limit"
        assert answers["5xx"] == 0


def test_the_table() -> None:
    alone, beside = (Served({"job": [t] * 20, "batch": [2 * t] * 20, "list": [t] * 20}) for t in (0.1, 0.3))
    beside.took_s["batch"] = [1.0] * 20
    beside.troubles.append("job: refused")
    cells = row(
        "floods", Beside([alone] * 3, [beside] * 3, Counter({"4xx": 12, "2xx": 3000}), unsettled=True)
    )
    assert cells == (
        "floods",
        "3,000 2xx, 12 4xx; its work outlasted it",
        "100 ms / 100 ms",
        "300 ms / 300 ms",
        "3.0",
        "batch: 200 ms, 1,000 ms, 5.0",
        "3",
    )


def test_of_few_values_p95_is_near_the_largest() -> None:
    assert p95([0.2]) == 0.2
    assert 1.0 < p95([0.1] * 9 + [2.0]) <= 2.0


def test_every_behaviour_of_the_test_is_known() -> None:
    assert set(TOGETHER) < set(BEHAVIOURS)
