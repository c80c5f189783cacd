"""What survives a crash, and what a second run may and may not go on with."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.errors import BadInput, CliError
from cli.journal import Journal, RunFolder, RunIdentity, write_results
from tests.workers import ROOT

IDENTITY = RunIdentity("abc", {"max_tokens": 5})


def entry(number: int) -> dict[str, Any]:
    return {"number": number, "text": "ü" * number}


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def filled(path: Path, count: int, total: int = 6) -> str:
    journal = Journal(path, total, IDENTITY)
    for number in range(count):
        journal.append(number, entry(number), failed=number == 1)
    run_id = journal.run_id
    journal.close()
    return run_id


def test_results_come_back_in_input_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", 3, IDENTITY)
    for number in (2, 0, 1):
        journal.append(number, entry(number), failed=False)
    journal.append(0, {"number": "late"}, failed=True)
    assert list(journal.ends()) == [entry(0), entry(1), entry(2)]
    assert (journal.done, journal.failed) == (3, 0)
    journal.close()


def test_a_journal_is_gone_on_with_under_the_same_run_id(tmp_path: Path) -> None:
    run_id = filled(tmp_path / "j", 3)
    journal = Journal(tmp_path / "j", 6, IDENTITY)
    assert journal.run_id == run_id
    assert [journal.has(index) for index in range(6)] == [True] * 3 + [False] * 3
    assert (journal.done, journal.failed) == (3, 1)
    for number in (5, 4, 3):
        journal.append(number, entry(number), failed=False)
    assert list(journal.ends()) == [entry(number) for number in range(6)]
    journal.close()


def test_a_failed_sync_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j", 1, IDENTITY)
    journal.append(0, entry(0), failed=False)
    synced: list[int] = []

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(CliError, match=r"cannot write .*/j: No space left"):
            journal.sync()
    monkeypatch.setattr("os.fsync", synced.append)
    journal.sync()
    journal.sync()
    assert len(synced) == 1
    journal.close()


def test_results_that_cannot_be_written_are_said_so(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r") as folder:
        journal = Journal(folder.journal, 0, IDENTITY)
        (folder.path / "results.part").mkdir()
        with pytest.raises(CliError, match=r"cannot write .*/r: Is a directory"):
            write_results(journal, folder, print)
        journal.close()


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_a_torn_last_line_is_done_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    filled(path, 3)
    os.truncate(path, path.stat().st_size - cut)
    journal = Journal(path, 6, IDENTITY)
    assert [journal.has(index) for index in range(4)] == [True, True, False, False]
    journal.append(2, entry(2), failed=False)
    journal.append(3, entry(3), failed=False)
    journal.close()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["index"] for line in lines[1:]] == [0, 1, 2, 3]


def test_garbage_in_the_middle_ends_what_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"\0" * len(lines[2]) + b"\n" + lines[3])
    journal = Journal(path, 6, IDENTITY)
    assert [journal.has(index) for index in range(3)] == [True, False, False]
    journal.close()


def test_a_torn_header_is_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"medusaq_run": 1, "ru')
    journal = Journal(tmp_path / "j", 2, IDENTITY)
    assert journal.done == 0
    journal.close()
    assert filled(tmp_path / "j", 0) == journal.run_id


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (RunIdentity("other", IDENTITY.options), "the input has changed .* --fresh"),
        (RunIdentity("abc", {"max_tokens": 6}), "other options .max_tokens was 5.; .* --fresh"),
        (RunIdentity("abc", {"max_tokens": 5, "system": "x"}), "other options .system was null.; .* --fresh"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, identity: RunIdentity, message: str) -> None:
    filled(tmp_path / "j", 1)
    with pytest.raises(BadInput, match=message):
        Journal(tmp_path / "j", 6, identity)


@pytest.mark.parametrize("header", ['{"x": 1}', "[]", "nonsense", '{"medusaq_run": 99, "run": "r"}'])
def test_what_is_no_journal_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "j").write_text(header + "\n", encoding="utf-8")
    with pytest.raises(BadInput, match="is not the journal of a run"):
        Journal(tmp_path / "j", 6, IDENTITY)


def test_results_are_whole_or_not_at_all(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    results.write_text("before", encoding="utf-8")
    with RunFolder(results) as folder:
        filled(folder.journal, 5)
        journal = Journal(folder.journal, 6, IDENTITY)
        with pytest.raises(CliError, match="request 6 has no result"):
            write_results(journal, folder, lambda _: None)
        assert results.read_text(encoding="utf-8") == "before"
        journal.append(5, {"half pair": "\ud800"}, failed=False)
        seen: list[dict[str, Any]] = []
        write_results(journal, folder, seen.append)
        journal.close()
        assert [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] == seen
        assert seen[5] == {"half pair": "?"}
        folder.remove()
    assert names(tmp_path) == ["r.jsonl"]


def test_a_folder_in_which_nothing_was_begun_is_not_left_behind(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        assert folder.path.is_dir()
    assert names(tmp_path) == []


def test_clearing_keeps_the_lock_alone(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        filled(folder.journal, 1)
        (folder.path / "stack" / "redis").mkdir(parents=True)
        (folder.path / "results.part").touch()
        folder.clear()
        assert names(folder.path) == ["lock"]


HOLD = """
import sys
from pathlib import Path
from cli.journal import RunFolder
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
