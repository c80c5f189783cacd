"""Every script that takes an id, on a record that was deleted just before: nothing of it comes back.

A script that is not named here fails the first test, until somebody says what it may do.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from tasks.base.errors import FileInUse, FileNotFound
from tasks.batches.store import BatchStore
from tasks.files.records import FileRecords, NewFile, Purpose, new_file_id
from tasks.records.batch import NewBatch, new_batch_id
from tasks.records.endpoints import CHAT
from tasks.store.jobs import JobStore
from tasks.store.scripts import Argument, assemble, read_sources
from tests.tasks.helpers.explorer import CLOCK, Keys, Server
from tests.tasks.helpers.records import batch_store

MS = 1000
RECORDS = ("job", "batch", "file", "hook", "key")  # the kinds that have a record, a hash under their id
LEADS: Keys = {f"string {CLOCK}": "1000", "string led_by": "x", "string leader": "x"}
NO_ID = {  # scripts that take none, or make the record of a new one
    "batches/create",
    "leader/lead",
    "leader/renew",
    "leader/resign",
    "jobs/create",
    "jobs/idempotency_lookup",
    "files/create",
    "files/due",
    "files/page",
    "webhooks/secret",
    "webhooks/lease_due",
    "keys/admit",
    "keys/create",
    "keys/list",
    "jobs/list",
    "queues/reconcile",
    "queues/release_deferred",
    "queues/queue_stats",
    "queues/expire_leases",
}
JOB, BATCH, FILE, HOOK, KEY, WINDOW = "job_1", "batch_1", "file_1", "evt_1", "key_1", "win_1-1"
GONE: dict[str, tuple[Argument, ...]] = {
    "batches/chunks_ready": ("x", BATCH, 1, 1),
    "batches/count_copy": ({"token": "x", "id": BATCH, "bytes": 5, "max_files": 9, "max_files_bytes": 9},),
    "batches/segment_stored": ("x", BATCH, "part", 1, 100, ""),
    "batches/next_jobs": ("x", BATCH, 9),
    "batches/jobs_stored": (
        {
            "token": "x",
            "id": BATCH,
            "number": 0,
            "name": "part",
            "results": 1,
            "input_tokens": 1,
            "cached_tokens": 0,
            "output_tokens": 1,
            "codes": {"code": 1},
        },
    ),
    "batches/delete": (BATCH, ""),
    "batches/stop": (BATCH, "cancelled", ""),
    "batches/next_results": ("x", BATCH, 9),
    "batches/finalizing": ("x", BATCH, 1, "code"),
    "batches/finish": ("x", BATCH, MS, "completed"),
    "batches/validated": (
        {"token": "x", "id": BATCH, "chunks": 1, "lines": 1, "invalid": 1, "model": "", "codes": {"code": 1}},
        "[]",
    ),
    "windows/send": (
        {
            "token": "x",
            "id": BATCH,
            "chunk": 0,
            "offset": 0,
            "next_chunk": 1,
            "next_offset": 0,
            "model_queue": "",
            "models": [""],
        },
        '1\t1\t0\t""\t"a"\t{}\n',
    ),
    "windows/claim": (
        {"id": WINDOW, "worker": "w", "claim_id": "c", "lease_ms": MS, "max_attempts": 3, "model": ""},
    ),
    "windows/advance": ({"id": WINDOW, "fencing_token": 1, "group": 1, "open": 1, "ends": []},),
    "windows/release": (WINDOW, 1),
    "windows/running": (BATCH,),
    "windows/split": (WINDOW, 1, 0),
    "windows/end_queued": (WINDOW,),
    "jobs/start_isolated": (JOB, 1),
    "jobs/cancel": (JOB, MS, ""),
    "jobs/claim": (
        {
            "id": JOB,
            "worker": "w",
            "claim_id": "token",
            "lease_ms": MS,
            "max_attempts": 3,
            "ttl_ms": MS,
            "model": "",
        },
    ),
    "jobs/delete": (JOB, ""),
    "files/begin": (
        {"id": FILE, "lease_ms": MS, "owner": "", "most_bytes": 0, "max_files": 9, "max_files_bytes": 9},
    ),
    "files/delete": (FILE, MS, ""),
    "files/gone": (FILE,),
    "files/renew": (FILE, MS),
    "jobs/finish": (
        {"id": JOB, "fencing_token": 1, "status": "succeeded", "model": "", "ttl_ms": MS, "tokens": 1},
        "",
        "",
    ),
    "jobs/requeue": (JOB, 1, MS),
    "jobs/heartbeat": (MS, JOB, 1),
    "webhooks/attempt_done": (
        {"id": HOOK, "fencing_token": 1, "status": "delivered", "delay_ms": 0, "ttl_ms": MS, "kept": 9},
        "{}",
    ),
    "webhooks/replay": (HOOK, "o"),
    "keys/revoke": (KEY,),
    "jobs/append_text": (MS, JOB, 1, 0, "text", "{}"),
    "jobs/watch": (JOB, "gateway", "1", "status"),
}


def records(keys: Keys) -> list[str]:
    """Records, and the keys beside them that hold more of the same."""
    return [name for name in keys if any(f" {kind}:" in name for kind in (*RECORDS, "text"))]


@pytest.fixture(scope="module")
def names() -> set[str]:
    return set(assemble(read_sources()))


def test_all_scripts_are_here(names: set[str]) -> None:
    assert names == NO_ID | set(GONE)
    assert not NO_ID & set(GONE)


@pytest.mark.parametrize("script", GONE)
def test_a_script_makes_no_half_of_a_record(scratch: redis.Redis, script: str) -> None:
    [(_, after)] = Server(scratch).run([(LEADS, script, GONE[script])])
    assert records(after) == []


RECONCILE: tuple[Argument] = (
    {
        "max_attempts": 3,
        "resend_after_ms": 0,
        "ttl_ms": MS,
        "lease_ms": MS,
        "gap_ms": 10**9,
        "limit": 200,
        "queues": [("bulk", "", "x:queue")],
    },
)
CREATE_BATCH = {
    "id": BATCH,
    "expires_in_ms": 86400 * MS,
    "idempotency_key": "k",
    "body_hash": "hash",
    "idempotency_ttl_ms": MS,
    "input_file_id": FILE,
    "max_files": 9,
    "max_files_bytes": 9,
    "max_stored_bytes": 10**9,
}


@pytest.mark.parametrize(
    ("script", "arguments", "index"),
    [
        ("queues/reconcile", RECONCILE, "zset leases"),
        ("queues/reconcile", RECONCILE, "zset deadlines"),
        ("queues/reconcile", RECONCILE, "zset pending:bulk"),
        ("queues/reconcile", RECONCILE, "zset expiry"),
        ("queues/release_deferred", ("x", "bulk", "o", 5), "zset held:o"),
        ("queues/release_deferred", ("x", "interactive", "o", 5), "zset interactive_held:o"),
    ],
)
def test_an_index_without_the_record_holds_nothing_up(
    scratch: redis.Redis, script: str, arguments: tuple[Argument, ...], index: str
) -> None:
    """As after a restore of a Redis that had lost a part."""
    keys = {**LEADS, index: {JOB: "1"}, "hash held": {"o": "1"}}
    [(_, after)] = Server(scratch).run([(keys, script, arguments)])
    assert records(after) == []
    assert index not in after


def test_scores_beyond_the_clock_without_the_record(scratch: redis.Redis) -> None:
    """The clock was set back: these are brought forward, but only where there is a record."""
    keys = {**LEADS, "zset pending:bulk": {JOB: str(10**9)}, "zset leases": {JOB: str(10**9)}}
    [(_, after)] = Server(scratch).run([(keys, "queues/reconcile", RECONCILE)])
    assert records(after) == []


def test_a_batch_is_made_of_a_file_that_stands(scratch: redis.Redis) -> None:
    """And leaves nothing behind where it does not: the file may have gone since somebody looked."""
    server = Server(scratch)
    create = ({**CREATE_BATCH, "owner": "o"}, "metadata", "{}")
    [(answer, after)] = server.run([(LEADS, "batches/create", create)])
    assert (answer, after) == (["no_file", FILE], LEADS)
    stands = {**LEADS, f"hash file:{FILE}": {"id": FILE, "purpose": "batch", "owner": "o"}}
    [(answer, made)] = server.run([(stands, "batches/create", create)])
    assert answer[0] == "created"
    [(answer, after)] = server.run([(made, "files/delete", (FILE, MS, ""))])
    assert (answer, after) == ("in_use", made)


REFUSED: list[tuple[str, tuple[Argument, ...], Keys]] = [
    (
        "jobs/create",
        (
            {
                "priority": "bulk",
                "model": "",
                "metadata": "{}",
                "owner": "o",
                "traceparent": "",
                "max_tokens": 1,
                "reserved_bytes": 9,
                "idempotency_key": "k",
                "body_hash": "hash",
                "idempotency_ttl_ms": MS,
                "max_queued": 0,
                "max_stored_bytes": 9,
                "jobs": [{"id": JOB, "size": "", "prompt": ""}],
            },
            "{}",
        ),
        {},
    ),
    (
        "batches/create",
        ({**CREATE_BATCH, "owner": "key_o"}, "metadata", "{}"),
        {"hash key:key_o": {"max_batches": "0"}, f"hash file:{FILE}": {"id": FILE}},
    ),
    (
        "files/create",
        (
            {
                "id": FILE,
                "bytes": 1,
                "filename": "a",
                "purpose": "batch",
                "idempotency_key": "k",
                "body_hash": "hash",
                "idempotency_ttl_ms": MS,
                "owner": "o",
            },
        ),
        {},
    ),
]


@pytest.mark.parametrize(("script", "arguments", "keys"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_is_refused_leaves_no_note_of_its_idempotency_key(
    scratch: redis.Redis, script: str, arguments: tuple[Argument, ...], keys: Keys
) -> None:
    before = json.loads(json.dumps({**LEADS, **keys}))
    [(answer, after)] = Server(scratch).run([(before, script, arguments)])
    assert answer[0] in ("queue", "batches", "lost")
    assert after == before


def test_batches_made_of_files_that_are_deleted_at_the_same_time(store: JobStore) -> None:
    files, batches = FileRecords(store.db), BatchStore(store.db)
    made = refused = 0
    with ThreadPoolExecutor(2) as pool:
        for _ in range(100):
            file_id = new_file_id()
            files.begin(file_id)
            files.create(NewFile(file_id, 1, "a", Purpose.BATCH))
            deleting = pool.submit(files.drop, file_id)
            creating = pool.submit(batches.create, NewBatch(CHAT, file_id))
            outcomes = type(deleting.exception()), type(creating.exception())
            assert outcomes in ((FileInUse, type(None)), (type(None), FileNotFound)), outcomes
            uses = store.db.redis.smembers(f"{store.db.prefix}file_uses:{file_id}")
            if outcomes[0] is FileInUse:
                made += 1
                assert uses == {creating.result().id}
                assert files.get(file_id).id == file_id
            else:
                refused += 1
                assert uses == set()
    assert made + refused == 100
    assert len(batches.page(100)[0]) == made


def test_a_batch_repeated_while_it_is_deleted(store: JobStore) -> None:
    """The same request gives it, or a new one: never that there is none."""
    batches = batch_store(store)
    new = NewBatch(CHAT, "file_x", idempotency_key="k", body_hash="h")
    stop = threading.Event()

    def repeat() -> set[str]:
        seen = set()
        while not stop.is_set():
            seen.add(batches.create(replace(new, id=new_batch_id())).id)
            if (earlier := batches.earlier("k", "h")) is not None:
                seen.add(earlier.id)
        return seen

    with ThreadPoolExecutor(3) as pool:
        repeating = [pool.submit(repeat) for _ in range(3)]
        for _ in range(60):
            work = batches.lead("me", {"": 1})
            assert work is not None
            for active in work.active:
                batches.finish("me", active.batch.id, "completed")
                batches.delete(active.batch.id)
        stop.set()
        seen = set.union(*(each.result(30) for each in repeating))
    assert len(seen) > 1
    halves = [
        key
        for key in store.db.redis.scan_iter(f"{store.db.prefix}batch:*")
        if not store.db.redis.hexists(key, "id")
    ]
    assert halves == []
