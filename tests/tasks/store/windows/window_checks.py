"""What must hold in every state of a batch's windows, and after each step."""

from __future__ import annotations

from typing import Any

from tests.tasks.helpers.batch_scripts import BATCH, OWNER
from tests.tasks.helpers.explorer import MS, Keys, Step
from tests.tasks.store.windows.window_state import (
    LEASE,
    RESEND,
    SET_ASIDE,
    TOOK,
    WORKERS,
    State,
    View,
    Window,
)


def check_counters(after: View, keys: Keys) -> None:
    batch, live = after.batch, len(after.live)
    results = keys.get(f"list batch:{BATCH}:results", [])
    done = sum(code is None for _, code in after.results)
    for name, number in {
        "completed": done,
        "failed": len(results) - done,
        "lines_live": live,
        "result_bytes": sum(map(len, results)),
        "output_tokens": TOOK * done,
    }.items():
        assert int(batch.get(name, 0)) == number, f"{name} is {batch.get(name)}, not {number}"
    outstanding = keys.get("hash outstanding", {})
    assert outstanding == ({OWNER: str(live)} if live else {}), "its owner's share is miscounted"
    spent = SET_ASIDE * live + TOOK * done
    assert keys[f"string owner:{OWNER}:tokens:0"] == str(spent), "its owner's tokens are miscounted"
    stored = sum(int(record["stored"]) for record in [batch, *(w.fields for w in after.windows)])
    stored += int(batch.get("result_bytes", 0))
    assert keys["hash stored_bytes"] == {OWNER: str(stored)}, "its owner's bytes are miscounted"
    ended = keys.get("hash ended", {})
    assert sum(map(int, ended.values())) == len(results), "ends are miscounted"
    assert keys.get("hash lines_ended", {}) == ended, "ends of lines are miscounted"


def check_over(before: View, after: View) -> None:
    for window in after.windows:
        was = before.by_id.get(window.id)
        if was is not None and was.fields["fence"] == window.fields["fence"] and window.running:
            assert window.of("opened") <= was.of("opened"), "opened after its batch has ended"
            wrote = window.of("group") > was.of("group")
            assert not wrote or window.of("opened") == window.of("count"), "waits after its batch has ended"


def check_window(window: Window, keys: Keys, cap: int) -> None:
    fields = window.fields
    assert len(fields["states"]) == len(window.numbers) == window.of("count"), "states of other lines"
    assert len(window.live) == window.of("left") > 0, "what is left is miscounted"
    assert window.of("set_aside") == SET_ASIDE * len(window.live), "what is set aside is miscounted"
    assert "1" not in fields["states"][window.of("opened") :], "a line has ended that was not open"
    assert window.of("attempts") < cap, "more attempts than the cap"
    last = window.of("attempts") > 0 and window.of("attempts") + 1 >= cap
    assert not last or window.of("count") == 1, "a last attempt with others"
    assert (window.id in keys.get("zset window_leases", {})) == window.running, "a lease of none that runs"
    assert (window.id in keys.get("zset pending:windows", {})) == (not window.running), (
        "pending, and not queued"
    )
    if not window.running:
        assert (window.of("opened"), len(window.live)) == (0, window.of("count")), "queued as it ran"


def check_store(view: View, keys: Keys, count: int, cap: int) -> None:
    """What holds whatever was there before."""
    lines = sorted((*view.live, *(n for n, _ in view.results)))
    assert lines == list(range(1, count + 1)), "a line is lost, or there twice"
    check_counters(view, keys)
    for window in view.windows:
        check_window(window, keys, cap)
    names = {window.id for window in view.windows} | ({"results"} if view.results else set())
    assert set(keys.get(f"set batch:{BATCH}:live", [])) == names, "the wrong windows are live"
    codes = {code for _, code in view.results}
    assert "batch_cancelled" not in codes or view.batch["ending"] == "cancelled", "cancelled by nobody"
    in_time = int(view.batch["expires_at"]) > view.now * MS
    assert "batch_expired" not in codes or not in_time, "expired too early"


def check_reconciled(before: View, after: View, keys: Keys, *, resends: bool) -> None:
    leases = keys.get("zset window_leases", {})
    assert all(int(at) > after.now * MS for at in leases.values()), "a lease that ran out is kept"
    old = (after.now - RESEND) * MS
    for window in after.windows:
        waits = resends and not window.running
        assert not waits or window.of("enqueued_at") > old, "its message is lost for ever"
    for window in before.windows:
        if window.running and window.lease > after.now * MS:
            now = after.by_id.get(window.id)
            kept = now is not None and now.fields == window.fields
            assert kept, "lost before its lease ran out"


def check_holder(before: State, step: Step[State], answer: Any, after: State) -> None:
    worker = before.workers[WORKERS.index(step.name[0])]
    window = before.view.by_id.get(worker.window)
    current = window is not None and window.running and window.of("fence") == worker.fence
    if not current:
        assert answer in (["lost"], ["gone"], 0, ""), f"{answer} for a claim that is not current"
        assert after.keys == before.keys, "changed by one that has lost it"
    elif step.script in ("windows/advance", "jobs/heartbeat"):
        assert answer[0] not in ("lost", "gone"), f"{answer} for a claim that is current"
    if current and step.script == "jobs/heartbeat":
        [window] = [one for one in after.view.windows if one.id == worker.window]
        assert window.lease == (after.view.now + LEASE) * MS, "a beat that does not renew its lease"


def check_claim(before: State, step: Step[State]) -> None:
    worker = before.workers[WORKERS.index(step.name[0])]
    window = before.view.by_id[worker.window]
    if window.running:
        assert window.fields["claim_token"] == worker.token, "taken from its holder"
    else:
        assert not before.view.over, "given to a worker after its batch has ended"


def check_missed(before: View, step: Step[State], after: View) -> None:
    holder, _, what = step.name.partition(" ")
    for window in before.windows:
        missed = window.running and window.fields["holder"] == holder and what == "is missed"
        assert after.by_id[window.id].lease == (0 if missed else window.lease), (
            "not the leases of who is missed"
        )
