"""Both clients against a real gateway, io worker and model worker; the engine is scripted."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pytest

import medusaq
from medusaq import BatchFailed, GatewayError, JobFailed, MedusaqError, WaitTimeout
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
SCHEMA = {"type": "object", "properties": {"mood": {"type": "string"}}, "required": ["mood"]}


def stored(gateway: str) -> tuple[int, int]:
    """Files and batches at the gateway."""
    kinds = ("files", "batches")
    files, batches = (len(httpx.get(f"{gateway}/v1/{kind}").json()["data"]) for kind in kinds)
    return files, batches


def test_rows_come_back_in_order_with_their_answers(client: Any, gateway: str) -> None:
    before = stored(gateway)
    rows = [{"n": n, "word": f"word{n} delay={0.1 * (n % 3)}", "tags": ["a", {"b": n}]} for n in range(20)]
    rows[3]["word"] = "bad fail=boom"
    found = list(client.run(rows, template="say {{ word }}", usage=True, max_tokens=5))
    assert [row["n"] for row in found] == list(range(20))
    assert [row["tags"] for row in found] == [row["tags"] for row in rows]
    assert [row["answer"] for row in found] == [None if n == 3 else f"say word{n}" for n in range(20)]
    assert [row["error"] is None for row in found] == [n != 3 for n in range(20)]
    assert found[3]["error"].startswith("boom")
    assert found[0]["completion_tokens"] == 1
    assert stored(gateway) == before


def test_texts_are_prompts_and_any_iterator_is_read(client: Any) -> None:
    assert [row["answer"] for row in client.run(f"text {n}" for n in range(3))] == [
        "text 0",
        "text 1",
        "text 2",
    ]


def test_the_rows_of_a_frame_are_sent_and_not_its_columns(client: Any) -> None:
    frame = duckdb.sql(
        "SELECT range AS n, 'word' || range AS prompt, DATE '2024-01-02' AS day, 'nan'::FLOAT AS ratio "
        "FROM range(3000)"
    )
    found = list(client.run(frame, template="{{ prompt }}{{ ratio }}"))
    assert [row["n"] for row in found] == [*range(3000)]
    assert [row["answer"] for row in found] == [f"word{n}" for n in range(3000)]
    assert {(row["day"], row["ratio"]) for row in found} == {("2024-01-02", None)}


def test_values_of_numpy_are_those_of_python(client: Any) -> None:
    row = {"n": np.int64(3), "f": np.float32(0.5), "at": np.datetime64("2024-01-02T12:30:15", "ns")}
    (found,) = client.run([row | {"tags": np.array(["a"])}], template="{{ n }} {{ at }}")
    assert found["answer"] == "3 2024-01-02 12:30:15"
    assert (found["n"], found["f"], found["tags"]) == (3, 0.5, ["a"])


def test_a_file_of_any_table_is_run(client: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("prompt;n\nhallo;1\nwelt;2\n")
    for path in (tmp_path / "t.csv", str(tmp_path / "t.csv")):
        assert [(row["n"], row["answer"]) for row in client.run(path)] == [("1", "hallo"), ("2", "welt")]


def test_the_properties_of_a_schema_are_fields(client: Any) -> None:
    words = ['{"mood": "good"}', "no object"]
    good, bad = client.run([{"w": word} for word in words], template="{{ w }}", schema=SCHEMA, columns=["w"])
    assert (good["mood"], good["error"]) == ("good", None)
    assert bad["mood"] is None
    assert "not JSON" in bad["error"]


def test_a_run_that_nobody_reads_on_leaves_nothing(client: Any, gateway: str) -> None:
    before = stored(gateway)
    rows = client.run(["quick", "quick too"])
    assert next(rows)["answer"] == "quick"
    rows.close()
    assert stored(gateway) == before


def test_an_interrupted_run_is_cancelled(gateway: str) -> None:
    """As by Ctrl-C, in the middle of the wait."""
    client = medusaq.Client(gateway)
    pause = client._connection._result

    def interrupted(step: Any) -> Any:
        if isinstance(step, medusaq.steps.Send) and "Prefer" in (step.options.get("headers") or {}):
            raise KeyboardInterrupt
        return pause(step)

    client._connection._result = interrupted  # type: ignore[method-assign]
    with client, pytest.raises(KeyboardInterrupt):
        list(client.run(["endless delay=300"]))
    with medusaq.Client(gateway) as client:
        newest, *_ = client.batches()
    assert newest.status in ("cancelling", "cancelled")


def test_a_job_is_submitted_and_waited_for(client: Any) -> None:
    job = client.submit("hello delay=0.3", max_tokens=7, metadata={"k": "v"})
    assert not job.ended
    ended = client.wait(job)
    assert (ended.id, ended.status, ended.text) == (job.id, "succeeded", "hello")
    assert ended.record["metadata"] == {"k": "v"}
    assert client.job(job.id) == ended
    talk = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    assert client.wait(client.submit(talk)).finish_reason == "stop"


def test_a_job_without_an_answer_is_an_error_of_one_line(client: Any) -> None:
    job = client.submit("x fail=boom")
    with pytest.raises(JobFailed, match=rf"^{job.id}: boom: [^\n]*$") as failed:
        client.wait(job)
    assert failed.value.job.status == "failed"


def test_waiting_ends_in_time_and_the_job_goes_on(client: Any) -> None:
    job = client.submit("slow delay=300")
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"has not ended within 0\.5 s: it is (queued|running)$"):
        client.wait(job, timeout_s=0.5)
    assert time.monotonic() - began < 10
    client.cancel(job)
    with pytest.raises(JobFailed, match="cancelled"):
        client.wait(job)


def test_an_answer_is_streamed(client: Any) -> None:
    began = time.monotonic()
    pieces, times = [], []
    for piece in client.stream("one two three stream=1 delay=2.4 chunks=3"):
        pieces.append(piece)
        times.append(time.monotonic() - began)
    assert "".join(pieces).split() == ["one", "two", "three"]
    assert len(pieces) > 1
    assert times[-1] - times[0] > 0.3


def test_a_stream_of_a_job_that_fails_says_so(client: Any) -> None:
    with pytest.raises(JobFailed, match="boom"):
        list(client.stream("x fail=boom"))


def test_a_stream_that_nobody_reads_on_is_cancelled(client: Any, gateway: str) -> None:
    pieces = client.stream("abandoned words stream=50 delay=300 chunks=100000")
    next(pieces)
    pieces.close()
    newest = httpx.get(f"{gateway}/v1/jobs?limit=1").json()["data"][0]
    wait_until(lambda: client.job(newest["id"]).status == "cancelled")


def test_batches(client: Any, tmp_path: Path) -> None:
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/jobs", "body": {"prompt": text, "model": "gpt"}}
        for n, text in enumerate(["p0", "p1 fail=boom", "p2"])
    ]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    batch = client.submit_batch(tmp_path / "lines.jsonl", endpoint="/v1/jobs", model="scripted")
    done = client.wait(batch, timeout_s=60)
    assert (done.status, done.total, done.completed, done.failed) == ("completed", 3, 2, 1)
    assert [line["custom_id"] for line in client.output(done)] == ["c0", "c2"]
    assert [line["custom_id"] for line in client.errors(done)] == ["c1"]
    again = client.wait(client.retry(done, max_tokens=9))
    assert again.failed == 1
    assert client.batch(done.id) == done
    assert [each.id for each in client.batches()][:2] == [again.id, done.id]


def test_rows_of_a_batch_are_read_later(client: Any) -> None:
    batch = client.submit_batch(["one", "two fail=boom"], priority=2)
    assert [row["answer"] for row in client.rows(client.wait(batch))] == ["one", None]
    assert batch.record["priority"] == 2


def test_a_batch_can_be_cancelled(client: Any) -> None:
    batch = client.submit_batch(["endless delay=300"])
    client.cancel(batch)
    ended = client.wait(batch)
    assert (ended.status, ended.failed, ended.cancelled) == ("cancelled", 0, ended.total)


def test_a_table_that_cannot_be_used_is_an_error_of_one_line(client: Any) -> None:
    with pytest.raises(BatchFailed, match=r"^batch_\w+: [^\n]*nme[^\n]*$"):
        list(client.run([{"name": "x"}], template="{{ nme }}"))


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([], {}, "there are no rows"),
        ([{"a": object()}], {}, "row 1, a: object is no type of JSON: make it text, a number or a list"),
        (["x", {"a": float("inf")}], {}, "row 2, a: JSON has no infinite numbers"),
        ([["ab", "cd"]], {}, "row 1: an object of type list is neither a text nor a dictionary"),
        ({"prompt": "x"}, {}, "the rows are one dictionary: put it into a list"),
        (5, {}, "an object of type int has no rows"),
        (duckdb.sql("SELECT 1 AS a WHERE false"), {}, "there are no rows"),
        ("/nowhere.csv", {}, "cannot read /nowhere.csv: No such file or directory"),
        ([{"a": 1}], {"template": "{{ a }}", "max_tokens": 0}, "max_tokens"),
        ([{"a": 1}], {"template": "{% set x = 1 %}"}, "template"),
    ],
)
def test_what_cannot_be_sent_is_an_error_of_one_line(
    client: Any, rows: Any, fields: Any, message: str
) -> None:
    with pytest.raises(MedusaqError, match=rf"^[^\n]*{message}[^\n]*$"):
        list(client.run(rows, **fields))


def test_lines_say_their_sampling_themselves(client: Any, tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").touch()
    with pytest.raises(MedusaqError, match="max_tokens: a file of batch lines says this in each line"):
        client.submit_batch(tmp_path / "lines.jsonl", max_tokens=3)


def test_refusals_have_the_code_of_the_gateway(client: Any) -> None:
    with pytest.raises(GatewayError, match="max_tokens") as refused:
        client.submit("x", max_tokens=0)
    assert refused.value.status == 400
    assert refused.value.error["param"] == "max_tokens"
    with pytest.raises(GatewayError) as missing:
        client.job("job_no/such?id")
    assert missing.value.status == 404


def test_what_a_run_takes_does_not_grow_with_its_rows(gateway: str) -> None:
    """The rows come from an iterator and go to one: none of them is kept."""
    import tracemalloc

    def made(count: int) -> int:
        with medusaq.Client(gateway) as client:
            rows = ({"prompt": "p", "long": "x" * 2000} for _ in range(count))
            tracemalloc.start()
            try:
                assert sum(1 for _ in client.run(rows)) == count
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    made(10)
    few, many = made(200), made(3000)
    assert many - few < 2_000_000  # of six million bytes


def test_a_client_is_used_by_several_threads(gateway: str) -> None:
    with medusaq.Client(gateway) as client:
        found: list[str] = []

        def ask(n: int) -> None:
            found.append(client.wait(client.submit(f"t{n}")).text)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == ["t0", "t1", "t2", "t3"]
