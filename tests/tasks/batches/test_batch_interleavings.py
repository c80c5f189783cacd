"""A batch of two lines in every interleaving: two io workers that may lead, crashes, and jobs that get lost.

Each step and what must hold after it: tests/tasks/helpers/batch_life.py.
"""

from __future__ import annotations

import pytest
import redis

from tests.tasks.helpers.batch_life import BatchLife
from tests.tasks.helpers.explorer import MOST_STATES, Broken, Known, Server, explore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def test_counters_are_right_in_every_interleaving(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    found = explore(server, BatchLife(server), MOST_STATES)
    print(found)
    assert found.ended > 0


MUTATIONS = [
    ("batches/validated", "if is_over(args.id) then return 'lost' end", ""),
    ("batches/count_copy", " or is_over(args.id)", ""),
    (
        "batches/segment_stored",
        "if redis.call('HGET', key, 'parts') ~= int(args.number) then return 'moved' end",
        "",
    ),
    (
        "batches/enqueue_lines",
        "if batch[1] ~= int(args.chunk) or batch[2] ~= int(args.offset) then return 'moved' end",
        "",
    ),
    ("batches/finish", "if redis.call('ZREM', P .. 'batches:active', id) == 0 then return 'ok' end", ""),
    ("jobs/finish", " or job.fence ~= fencing_token then", " then"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS)
def test_a_script_with_a_fault_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, BatchLife(server), MOST_STATES)
    print(script, caught.value)
