"""The life of a batch in every interleaving: two io workers, a worker, and a client.

Each step and what must hold after it: reading_life.py, collecting_life.py and batch_life.py beside this file.
"""

from __future__ import annotations

import pytest
import redis

from tests.tasks.batches.interleavings.collecting_life import CollectingLife
from tests.tasks.batches.interleavings.reading_life import ReadingLife
from tests.tasks.helpers.explorer import MOST_STATES, Broken, Known, Server, explore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def test_no_interleaving_of_reading_and_sending_loses_a_line(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    found = explore(server, ReadingLife(server), MOST_STATES)
    print(found)
    assert {f"{io} has read {lines} lines" for io in "ab" for lines in range(4)} <= found.names


def test_no_interleaving_of_collecting_and_ending_loses_a_line(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    life = CollectingLife(server)
    print(explore(server, life, MOST_STATES))
    assert life.ends == {"completed", "cancelled", "expired", "failed"}


SAID = "return { 'ok', redis.call('HGET', key, 'ending'), ARGV[3]"
RENEW = "if not renew_lead(ARGV[1]) then return 'lost' end"
OF_READING = [
    ("batches/chunks_ready", "return { 'ok', unpack(redis.call('HMGET', key, 'ending', 'chunks'))", SAID),
    ("batches/chunks_ready", "tonumber(redis.call('HGET', key, 'chunks')) < tonumber(ARGV[3])", "true"),
    ("batches/chunks_ready", "if not renew_lead(ARGV[1]) then return { 'lost', '', 0 } end", ""),
    ("batches/chunks_ready", "'validated') == '1' then", "'validated') == '2' then"),
    ("batches/validated", "if not renew_lead(args.token) then return 'lost' end", ""),
    ("batches/validated", "if redis.call('HGET', key, 'validated') == '1' then return 'ok' end", ""),
    ("batches/validated", "redis.call('HINCRBY', key, 'failed', int(args.invalid))", ""),
    ("batches/validated", "if args.segment then redis.call('RPUSH', key .. ':parts', args.segment) end", ""),
    ("batches/validated", "redis.call('HINCRBY', key .. ':codes', code, int(count))", ""),
    ("windows/send", "if not renew_lead(args.token) then return 'lost' end", ""),
    ("windows/send", "batch[3] ~= '' or ", ""),
    ("windows/send", "batch[1] ~= int(args.chunk) or batch[2] ~= int(args.offset)", "false"),
    ("windows/send", "redis.call('HINCRBY', key, 'lines_live', #texts)", ""),
    ("batches/stop", " and now[2] == ''", ""),
    ("leader/lead", "if redis.call('EXISTS', P .. 'leader') == 1 then return { 0 } end", ""),
]
OF_COLLECTING = [
    ("batches/next_results", "if not renew_lead(ARGV[1]) then return { 'lost' } end", ""),
    ("batches/segment_stored", "if not renew_lead(token) then return 'lost' end", ""),
    ("batches/segment_stored", "redis.sha1hex(taken_last) ~= last", "false"),
    ("batches/segment_stored", "if is_over(id) then return 'lost' end", ""),
    ("batches/segment_stored", "redis.call('RPUSH', key .. ':parts', name)", ""),
    ("batches/segment_stored", "tonumber(taken), -1", "-1, -1"),
    ("batches/segment_stored", "redis.call('HINCRBY', key, 'result_bytes', -bytes)", ""),
    ("batches/segment_stored", "count_bytes(redis.call('HGET', key, 'owner'), -bytes)", ""),
    ("batches/segment_stored", "redis.call('SREM', key .. ':live', 'results')", ""),
    ("batches/finalizing", RENEW, ""),
    ("batches/finalizing", "if is_over(ARGV[2]) then return 'lost' end", ""),
    ("batches/finish", RENEW, ""),
    ("batches/finish", "if redis.call('ZREM', P .. 'batches:active', id) == 0 then return 'ok' end", ""),
    ("batches/finish", "release_concurrency_slot('live_batches'", "release_concurrency_slot('live'"),
    ("batches/finish", "redis.call('SREM', P .. 'file_uses:'", "redis.call('SREM', P .. 'uses:'"),
    ("batches/stop", "if live and", "if"),
    ("lib/batches", "if redis.call('ZSCORE', P .. 'batches:active', id) then return false end", ""),
]
Life = type[ReadingLife] | type[CollectingLife]
MUTATIONS: list[tuple[Life, str, str, str]] = [
    *((ReadingLife, *each) for each in OF_READING),
    *((CollectingLife, *each) for each in OF_COLLECTING),
]


@pytest.mark.parametrize(("life", "script", "old", "new"), MUTATIONS)
def test_a_script_with_a_fault_is_found_out(
    scratch: redis.Redis, known: Known, life: Life, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, life(server), MOST_STATES)
    print(script, repr(new), caught.value)
