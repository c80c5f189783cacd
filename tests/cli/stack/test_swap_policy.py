"""Which models run within a budget: case by case, and over long simulated loads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.stack.swap_policy import Actions, Model, Phase, Rules, decide, max_concurrent

GB = 1_000_000_000
ONE = Rules(budget=GB, turn_s=60, idle_s=3)
NOW = 1000.0
A, B, C = (Model(name, GB) for name in "abc")


def running(model: Model, for_s: float, idle_s: float | None = None) -> Model:
    idle_since = None if idle_s is None else NOW - idle_s
    return replace(model, phase=Phase.RUNNING, running_since=NOW - for_s, idle_since=idle_since)


def waited_for(model: Model, for_s: float) -> Model:
    return replace(model, waited_for_since=NOW - for_s)


def decided(*models: Model, rules: Rules = ONE) -> tuple[str, str]:
    """Who starts, who stops."""
    actions = decide(models, rules, NOW)
    return "".join(actions.start), "".join(actions.stop)


def test_all_run_where_all_fit() -> None:
    assert decided(A, B, C, rules=replace(ONE, budget=3 * GB)) == ("abc", "")


def test_those_that_fit_start_in_the_order_given() -> None:
    assert decided(A, B, C, rules=replace(ONE, budget=2 * GB)) == ("ab", "")
    assert decided(A, replace(B, need=3 * GB), C, rules=replace(ONE, budget=2 * GB)) == ("ac", "")


def test_nothing_happens_while_nobody_waits() -> None:
    assert decided(running(A, 900, idle_s=900), B) == ("", "")


def test_an_idle_model_makes_room_at_once() -> None:
    assert decided(running(A, 10, idle_s=3), waited_for(B, 0)) == ("", "a")


def test_a_model_that_was_busy_a_moment_ago_is_left_alone() -> None:
    assert decided(running(A, 10, idle_s=2.9), waited_for(B, 30)) == ("", "")


def test_a_busy_model_has_its_turn_first() -> None:
    assert decided(running(A, 59), waited_for(B, 100)) == ("", ""), "it has not run long enough"
    assert decided(running(A, 100), waited_for(B, 59)) == ("", ""), "nobody has waited long enough"
    assert decided(running(A, 60), waited_for(B, 60)) == ("", "a")


def test_a_model_that_is_loading_is_not_stopped() -> None:
    assert decided(replace(A, phase=Phase.LOADING), waited_for(B, 500)) == ("", "")


def test_nobody_else_is_stopped_while_one_stops() -> None:
    two = replace(ONE, budget=2 * GB)
    stopping = replace(A, phase=Phase.STOPPING)
    assert decided(stopping, running(B, 90, idle_s=90), waited_for(C, 5), rules=two) == ("", "")


def test_the_longest_waiting_comes_first_whatever_the_order() -> None:
    assert decided(A, waited_for(B, 1), waited_for(C, 2)) == ("c", "")


def test_nobody_takes_the_memory_that_one_waits_for() -> None:
    two = replace(ONE, budget=2 * GB)
    large, small = replace(waited_for(B, 50), need=2 * GB), waited_for(C, 10)
    assert decided(running(A, 90), large, small, rules=two) == ("", "")
    assert decided(running(A, 90, idle_s=5), large, small, rules=two) == ("", "a")


def test_idle_models_go_before_busy_ones_and_no_more_than_needed() -> None:
    three = replace(ONE, budget=3 * GB)
    busy, idle = running(A, 500), running(B, 100, idle_s=10)
    assert decided(busy, idle, running(C, 90), waited_for(Model("d", GB), 70), rules=three) == ("", "b")
    small = replace(idle, need=GB // 2)
    tight = replace(ONE, budget=GB + GB // 2)
    assert decided(busy, small, waited_for(C, 70), rules=tight) == ("", "a"), "the busy one alone is enough"


def test_how_many_run_together() -> None:
    assert max_concurrent([3, 1, 2], budget=3) == 2
    assert max_concurrent([3, 1, 2], budget=6) == 3
    assert max_concurrent([5], budget=3) == 1


# Over time

TURN, IDLE, LOAD, DRAIN = 10, 2, 3, 4  # ticks


@dataclass
class Simulated:
    """A model and its jobs; a tick runs one job of each running model."""

    model: Model
    queue: int = 0
    until: int = 0  # of loading or stopping


class Machine:
    """Obeys decide(), tick by tick, and keeps a diary."""

    def __init__(self, needs: list[int], budget: int) -> None:
        self.all = [Simulated(Model(str(n), need)) for n, need in enumerate(needs)]
        self.rules = Rules(budget, TURN, IDLE)
        self.now = 0
        self.starts: Counter[str] = Counter()
        self.last_work: dict[str, int] = {}
        self.longest_wait = 0
        self._waiting: dict[str, int] = {}

    def tick(self, arrivals: set[int]) -> None:
        for n in arrivals:
            self.all[n].queue += 1
        for one in self.all:
            self._go_on(one)
        actions: Actions = decide([one.model for one in self.all], self.rules, self.now)
        for one in self.all:
            name, phase = one.model.name, one.model.phase
            if name in actions.start:
                assert phase is Phase.PARKED
                self._into(one, Phase.LOADING, LOAD)
                self.starts[name] += 1
            elif name in actions.stop:
                assert phase is Phase.RUNNING
                ran = self.now - one.model.running_since
                assert ran >= min(TURN, IDLE), "nobody is stopped who has only just begun"
                self._into(one, Phase.STOPPING, DRAIN)
        used = sum(one.model.need for one in self.all if one.model.phase is not Phase.PARKED)
        assert used <= self.rules.budget
        self.now += 1

    def _go_on(self, one: Simulated) -> None:
        model, name = one.model, one.model.name
        if model.phase is Phase.RUNNING:
            self._waiting.pop(name, None)
            if one.queue:
                one.queue -= 1
                one.model = replace(model, idle_since=None)
            elif model.idle_since is None:
                one.model = replace(model, idle_since=self.now)
        elif model.phase is Phase.LOADING and self.now >= one.until:
            one.model = replace(model, phase=Phase.RUNNING, running_since=self.now, idle_since=None)
        elif model.phase is Phase.STOPPING and self.now >= one.until:
            one.model = replace(model, phase=Phase.PARKED, idle_since=None)
        if one.queue and one.model.phase is not Phase.RUNNING:
            self._waiting.setdefault(name, self.now)
            self.longest_wait = max(self.longest_wait, self.now - self._waiting[name])
        if one.model.phase is Phase.PARKED and one.queue and one.model.waited_for_since is None:
            one.model = replace(one.model, waited_for_since=self.now)

    def _into(self, one: Simulated, phase: Phase, ticks: int) -> None:
        one.until = self.now + ticks
        one.model = replace(one.model, phase=phase, waited_for_since=None, idle_since=None)


needs_lists = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(needs=needs_lists, spare=st.integers(0, 8), load=st.lists(st.sets(st.integers(0, 4)), max_size=150))
def test_never_over_the_budget_and_every_model_has_its_turn(
    needs: list[int], spare: int, load: list[set[int]]
) -> None:
    machine = Machine(needs, max(needs) + spare)
    for arrivals in load:
        machine.tick({n for n in arrivals if n < len(needs)})
    bound = (len(needs) + 1) * (TURN + DRAIN + LOAD + 2)
    for _ in range(3 * bound):  # until all is done
        machine.tick(set())
    assert machine.longest_wait <= bound
    swaps = sum(machine.starts.values()) - len(needs)
    assert swaps <= machine.now / (DRAIN + LOAD + min(IDLE, TURN)) * len(needs)


@pytest.mark.parametrize("models", [2, 3, 5])
def test_under_steady_load_of_all_each_has_its_share_and_no_more_swaps_than_turns(models: int) -> None:
    machine = Machine([2] * models, budget=3)
    ticks = 1000
    for _ in range(ticks):
        machine.tick(set(range(models)))
    turns = ticks / (TURN + DRAIN + LOAD)
    assert turns * 0.7 <= sum(machine.starts.values()) <= turns + models
    counts = [machine.starts[str(n)] for n in range(models)]
    assert max(counts) - min(counts) <= 1


def test_with_nothing_to_do_nothing_is_swapped() -> None:
    machine = Machine([2, 2, 2], budget=4)
    for _ in range(500):
        machine.tick(set())
    assert machine.starts == {"0": 1, "1": 1}
