"""What must hold in every state of a batch's windows."""

from __future__ import annotations

from tests.tasks.helpers.explorer import Keys
from tests.tasks.store.windows.window_state import BATCH, OWNER, SET_ASIDE, TOOK, State, Window


def check_counters(after: State, live: int) -> None:
    batch, keys = after.batch, after.keys
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


def check_over(before: State, after: State) -> None:
    earlier = {(window.id, window.fields["fence"]): window for window in before.windows}
    for window in after.windows:
        was = earlier.get((window.id, window.fields["fence"]))
        if was is not None and window.running:
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
