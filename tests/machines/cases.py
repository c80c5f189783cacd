"""What happens to which host, and how one batch and single jobs fare while it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tasks.records.batch import ENDED
from tests.chaos.clients.load import Order
from tests.chaos.run import Outcome, Trial
from tests.machines.fleet import GATEWAYS, IOS, REDIS, S3, WORKERS, Fleet

FAULT_S = 30.0
OFF_S = 10.0  # a host without power
ROUND_TRIP_S, LOSS = 0.2, 0.01
UNDER_WAY = 0.05  # of the lines have ended when the fault comes
BATCH_LIMIT_S = 900.0
LOOK_S = 0.1


@dataclass(frozen=True)
class Fault:
    """begin and end get a fleet and the name of a host."""

    title: str
    seconds: float
    begin: Callable[[Fleet, str], None]
    end: Callable[[Fleet, str], None]
    works_on: bool = False  # the host does, slowly


FAULTS = {
    "cut": Fault(
        f"cut off for {FAULT_S:g} s",
        FAULT_S,
        lambda fleet, name: fleet.network.cut(name),
        lambda fleet, name: fleet.network.heal(name),
    ),
    "slow": Fault(
        f"{ROUND_TRIP_S * 1000:g} ms away and {LOSS:.0%} of packets lost for {FAULT_S:g} s",
        FAULT_S,
        lambda fleet, name: fleet.network.slow(name, ROUND_TRIP_S, LOSS),
        lambda fleet, name: fleet.network.heal(name),
        works_on=True,
    ),
    "off": Fault(f"without power for {OFF_S:g} s", OFF_S, Fleet.switch_off, Fleet.switch_on),
}


@dataclass(frozen=True)
class Case:
    """host: chosen when it begins. alone: no other host does what it does. replicated: with Sentinels."""

    title: str
    host: Callable[[Fleet], str]
    fault: Fault | None = None
    alone: bool = False
    replicated: bool = False


@dataclass
class Result:
    """batch_s: from its acceptance to its end, as its record says."""

    case: Case
    outcome: Outcome
    batch_s: int
    host: str

    @property
    def failed(self) -> bool:
        tally = self.outcome.tally
        return bool(tally.lost or tally.doubled or tally.troubles)


def _cases() -> dict[str, Case]:
    hosts: dict[str, tuple[str, Callable[[Fleet], str], bool]] = {
        "redis": ("the host of Redis", lambda _: REDIS, True),
        "s3": ("the host of the S3 store", lambda _: S3, True),
        "worker": ("one of four model workers", lambda _: WORKERS[0], False),
        "io": ("the io worker that leads", lambda fleet: fleet.lead(IOS[0]), False),
        "gateway": ("one of two gateways", lambda _: GATEWAYS[0], False),
    }
    found = {"none": Case("nothing", lambda _: "")}
    for name, (title, host, alone) in hosts.items():
        for kind, fault in FAULTS.items():
            found[f"{name}-{kind}"] = Case(f"{title}: {fault.title}", host, fault, alone)
    for kind, fault in FAULTS.items():
        title = f"the master of three Redis servers with Sentinels: {fault.title}"
        found[f"sentinel-{kind}"] = Case(title, Fleet.master, fault, replicated=True)
    return found


CASES = _cases()


def carry_out(case: Case, trial: Trial[Fleet], lines: int) -> Result:
    """One batch of so many lines and single jobs all the while; a fault in the middle of them."""
    fleet, load = trial.stack, trial.load
    fleet.wait_ready()
    name = case.host(fleet)
    fleet.wait_ready()
    order = load.batch(trial.client, lines)
    load.begin(trial.size.jobs_per_s, 0)
    under_way = trial.wait(lambda: _ended(trial, order) >= UNDER_WAY * lines, "the batch did not begin")
    if case.fault is not None and under_way:
        _strike(trial, case, case.fault, name)
    trial.wait(lambda: trial.status_of(order.id) in ENDED, "the batch did not end", BATCH_LIMIT_S)
    load.end()
    fleet.wait_ready()
    outcome = trial.outcome()
    outcome.tally.troubles += fleet.ended()
    record = trial.client.get(f"/v1/batches/{order.id}")
    return Result(case, outcome, (record["completed_at"] or 0) - record["created_at"], name)


def _strike(trial: Trial[Fleet], case: Case, fault: Fault, name: str) -> None:
    """What others can do must go on while the host is away; what it does alone, once it is back."""
    if case.alone and not fault.works_on:
        trial.outage(lambda: _while_it_lasts(trial.stack, fault, name))
        return
    lasting = threading.Thread(target=_while_it_lasts, args=(trial.stack, fault, name))
    trial.strike(lasting.start)
    lasting.join()


def _while_it_lasts(fleet: Fleet, fault: Fault, name: str) -> None:
    fault.begin(fleet, name)
    time.sleep(fault.seconds)
    fault.end(fleet, name)


def _ended(trial: Trial[Fleet], order: Order) -> int:
    """Lines of a batch that have ended so far, as the gateway says."""
    counts = trial.client.get(f"/v1/batches/{order.id}")["request_counts"]
    time.sleep(LOOK_S)
    return int(counts["completed"] + counts["failed"])
