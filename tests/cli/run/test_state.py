"""What a run remembers, and what a second run may and may not go on with."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.base.errors import BadInput, CliError
from cli.run.folder import RunFolder
from cli.run.state import Part, RunIdentity, RunRecord, batches_of, binds, load
from tests.support.workers import ROOT

IDENTITY = RunIdentity("abc", {"max_tokens": 5, "stop": ["é"]})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(path: Path) -> RunRecord:
    record = RunRecord(IDENTITY, 7, 2, [Part(3, 1, "file_a", "batch_a"), Part(2)])
    record.save(path)
    return record


def test_a_record_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert load(path, IDENTITY) is None
    record = saved(path)
    assert load(path, IDENTITY) == record
    assert record.begun
    assert batches_of(path) == ["batch_a"]
    record.parts[0].reset(under_new_keys=False)
    assert record.parts[0] == Part(3, attempt=1)
    record.parts[0].reset(under_new_keys=True)
    assert record.parts[0] == Part(3, attempt=2)
    record.save(path)
    assert load(path, IDENTITY) == record
    assert not record.begun
    assert batches_of(path) == []


def test_only_what_a_gateway_has_binds(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert not binds(path)
    record = saved(path)
    assert binds(path)
    record.parts[0].batch_id = None
    record.save(path)
    assert binds(path), "a batch may have been made of the file"
    record.parts[0].reset(under_new_keys=True)
    record.save(path)
    assert not binds(path)
    path.write_bytes(b"nonsense")
    assert binds(path), "nobody can tell what was sent"


def test_two_runs_have_two_ids(tmp_path: Path) -> None:
    assert saved(tmp_path / "a").run_id != saved(tmp_path / "b").run_id


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (RunIdentity("other", IDENTITY.options), "the input has changed .* --fresh"),
        (
            RunIdentity("abc", {"max_tokens": 6, "stop": ["é"]}),
            "other options .max_tokens was 5.; .* --fresh",
        ),
        (
            RunIdentity("abc", {**IDENTITY.options, "system": "x"}),
            "other options .system was null.; .* --fresh",
        ),
    ],
)
def test_another_run_is_refused(tmp_path: Path, identity: RunIdentity, message: str) -> None:
    saved(tmp_path / "run.json")
    with pytest.raises(BadInput, match=message):
        load(tmp_path / "run.json", identity)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"x": 1}', "is not the record of a run; start over with --fresh"),
        (b"[]", "is not the record of a run"),
        (b"nonsense", "is not the record of a run"),
        (b"\xff", "is not the record of a run"),
        (b'{"medusaq_run": 2, "run_id": "r"}', "is not the record of a run"),
        (b'{"medusaq_run": 99, "run_id": "r"}', "was written by another version; start over with --fresh"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        load(path, IDENTITY)
    assert batches_of(path) == []


def test_a_record_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    before = saved(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CliError, match=r"cannot write .*/run\.json: No space left"):
        saved(path)
    assert load(path, IDENTITY) == before


def test_a_record_that_cannot_be_replaced_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(CliError, match=r"cannot write .*/taken: Is a directory"):
        saved(tmp_path / "taken")
    assert names(tmp_path) == ["taken"]


def test_a_folder_in_which_nothing_was_begun_is_not_left_behind(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        assert folder.path.is_dir()
    assert names(tmp_path) == []


def test_an_unfinished_run_stays_and_a_finished_one_goes_unless_it_is_kept(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        saved(folder.record)
    assert names(folder.path) == ["lock", "run.json"]
    with RunFolder(tmp_path / "r.jsonl", keep=True) as folder:
        folder.forget()
        folder.forget()
    assert names(folder.path) == ["lock"]
    with RunFolder(tmp_path / "r.jsonl") as folder:
        folder.forget()
    assert names(tmp_path) == []


def test_clearing_keeps_the_lock_alone(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        saved(folder.record)
        (folder.stack / "redis").mkdir(parents=True)
        folder.input.touch()
        folder.clear()
        assert names(folder.path) == ["lock"]


HOLD = """
import sys
from pathlib import Path
from cli.run.folder import RunFolder
with RunFolder(Path(sys.argv[1])) as folder:
    print(flush=True)
    sys.stdin.read()
"""


def test_two_runs_to_one_file_are_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    command = [sys.executable, "-c", HOLD, str(results)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        message = rf"another run is using .*r\.jsonl\.run \(process {holder.pid}\)"
        with pytest.raises(CliError, match=message):
            RunFolder(results).__enter__()
        holder.kill()
    with RunFolder(results) as folder:
        assert folder.path.is_dir()


def test_the_record_is_text_a_person_can_read(tmp_path: Path) -> None:
    saved(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert content["identity"]["options"] == {"max_tokens": 5, "stop": ["é"]}
    assert content["parts"][0] == {"lines": 3, "attempt": 1, "file_id": "file_a", "batch_id": "batch_a"}
