"""The life of a window in every interleaving: workers, messages, the reconciler, a client, and time.

Each step and what must hold after it: tests/tasks/store/windows/window_life.py. One line with two workers has
all
late writers and lost messages; two lines with one worker have all ways in which a window is parted.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.tasks.helpers.explorer import MOST_STATES, Broken, Known, Server, explore
from tests.tasks.store.windows.window_life import WindowLife

pytestmark = pytest.mark.slow
ONE_LINE: dict[str, Any] = {"count": 1, "cap": 2}
EXPIRING: dict[str, Any] = {"count": 1, "cap": 2, "expires": 3}
PARTED: dict[str, Any] = {"count": 2, "cap": 2, "splits": True, "resends": False, "workers": 1}


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


@pytest.mark.parametrize(
    ("life", "ends"),
    [
        (ONE_LINE, {None, "worker_lost", "batch_cancelled"}),
        (EXPIRING, {None, "worker_lost", "batch_cancelled", "batch_expired"}),
        (PARTED, {None, "worker_lost", "batch_cancelled"}),
    ],
)
def test_no_interleaving_loses_a_line_or_ends_it_twice(
    scratch: redis.Redis, known: Known, life: dict[str, Any], ends: set[str | None]
) -> None:
    server = Server(scratch, known=known)
    explored = WindowLife(server, **life)
    print(explore(server, explored, MOST_STATES))
    assert explored.ends == ends


MUTATIONS = [
    (ONE_LINE, "windows/advance", " or win.fence ~= args.fencing_token then", " then"),
    (ONE_LINE, "windows/advance", "win.status ~= 'running' or ", ""),
    (ONE_LINE, "windows/advance", "if args.group ~= win.group then", "if true then"),
    (ONE_LINE, "windows/advance", "  if not why then", "  if true then"),
    (ONE_LINE, "windows/claim", " and win.claim_token ~= args.claim_id then", " and false then"),
    (ONE_LINE, "windows/claim", "next_fence(win)", "win.fence"),
    (ONE_LINE, "windows/claim", "  if end_if_over(win) then return { 'done' } end\n", ""),
    (ONE_LINE, "windows/claim", "  leave_window_lists(win)\n", ""),
    (ONE_LINE, "windows/release", " or win.fence ~= tonumber(ARGV[2]) then", " then"),
    (ONE_LINE, "windows/end_queued", " and win.status == 'queued'", ""),
    (ONE_LINE, "jobs/heartbeat", "win[1] ~= 'running' or win[2] ~= fence", "win[1] ~= 'running'"),
    (ONE_LINE, "jobs/heartbeat", "  redis.call('ZADD', P .. 'window_leases', lease_until, id)\n", ""),
    (ONE_LINE, "queues/expire_leases", "'holder') == name then", "'holder') then"),
    (ONE_LINE, "queues/expire_leases", "redis.call('ZADD', P .. index, 0, id)", ""),
    (ONE_LINE, "queues/expire_leases", " ~= ARGV[2] then return 0 end", " == '0' then return 0 end"),
    (ONE_LINE, "queues/reconcile", "due_ids(index, math.min(NOW, since))", "due_ids(index, NOW + lease)"),
    (ONE_LINE, "lib/windows", "  win.attempts = win.attempts + 1\n", ""),
    (ONE_LINE, "lib/windows", "  if win.attempts >= max_attempts then", "  if false then"),
    (ONE_LINE, "lib/windows", "  spend(win.spent_in, ends.input", "  spend('', ends.input"),
    (ONE_LINE, "lib/windows", "  count_bytes(win.owner, -win.stored)\n", ""),
    (ONE_LINE, "lib/windows", "{ 'ended', 'lines_ended' }", "{ 'ended' }"),
    (ONE_LINE, "lib/windows", "  send(win)\n", ""),
    (ONE_LINE, "queues/reconcile", "    send(job)\n    resent", "    resent"),
    (ONE_LINE, "queues/expire_leases", "'ZADD', P .. index, 0, id", "'ZREM', P .. index, id"),
    (EXPIRING, "lib/windows", "  if win.deadline <= NOW then return 'batch_expired' end\n", ""),
    (PARTED, "windows/advance", "win.opened < win.count", "false"),
    (PARTED, "windows/split", "win.opened, 1)", "1)"),
    (PARTED, "windows/split", "if win.left == 0 then", "if false then"),
    (PARTED, "windows/split", ", win.set_aside - tokens_of(parted)", ", win.set_aside"),
    (PARTED, "lib/windows", "if i > from and win.states", "if win.states"),
    (PARTED, "lib/windows", "  if #waiting > 0 then add_window(win, waiting) end\n", ""),
    (PARTED, "lib/windows", "  if win.attempts + 1 >= max_attempts then", "  if false then"),
    (PARTED, "lib/windows", "for i = 2, #suspects do", "for i = 1, #suspects do"),
]


@pytest.mark.parametrize(("life", "script", "old", "new"), MUTATIONS)
def test_a_script_with_a_fault_is_found_out(
    scratch: redis.Redis, known: Known, life: dict[str, Any], script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, WindowLife(server, **life), MOST_STATES)
    print(script, repr(new), caught.value)
