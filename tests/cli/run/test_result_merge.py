"""Answers of several parts put in the input's order, each line once, or none at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.base.errors import CliError
from cli.gateway.retrying_client import RetryingClient
from cli.prompts.prompt_reader import PromptLine
from cli.run.folder import RunFolder
from cli.run.result_lines import dump
from cli.run.result_merge import PartLost, write_results
from cli.run.shards import PartFiles
from cli.run.state import Part
from cli.run.totals import Totals
from tasks.schema.job_request import Problem
from tests.cli.helpers.running import read_jsonl
from tests.support.peers.troubled import TroubledGateway, troubled_gateway

Entry = dict[str, Any]


def good(custom_id: str) -> Entry:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    response = {
        "status_code": 200,
        "request_id": "job",
        "body": {"usage": usage, "choices": [{"finish_reason": "stop"}]},
    }
    return {"id": "batch_req_x", "custom_id": custom_id, "response": response, "error": None}


def bad(custom_id: str | None, line: int) -> Entry:
    error = {"code": "boom", "message": "m", "param": None, "line": line}
    return {"id": "batch_req_x", "custom_id": custom_id, "response": None, "error": error}


def batch(number: int, output: bool = True, errors: bool = True, status: str = "completed") -> Entry:
    """The record of a part's batch."""
    return {
        "status": status,
        "output_file_id": f"out{number}" if output else None,
        "error_file_id": f"err{number}" if errors else None,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        yield folder


def cut(folder: RunFolder, ids: str, most_lines: int) -> list[Part]:
    """A line for each letter; a dot is a bad one."""
    with PartFiles(folder, most_lines) as files:
        for index, name in enumerate(ids):
            problems = (Problem("odd", code="odd"),) if name == "." else ()
            files.add(PromptLine(index, index + 1, None if problems else name, {"prompt": "x"}, problems))
    return files.parts


def merge(
    folder: RunFolder, parts: list[Part], files: dict[str, list[Entry]], batches: list[Entry]
) -> Totals:
    async def main(server: TroubledGateway) -> Totals:
        client = RetryingClient(server.url, 5)
        try:
            return await write_results(client, folder, parts, batches)
        finally:
            await client.close()

    with troubled_gateway() as server:
        for name, entries in files.items():
            server.content[f"/v1/files/{name}/content"] = b"".join(map(dump, entries))
        return asyncio.run(main(server))


def test_each_line_is_answered_once_in_order(folder: RunFolder) -> None:
    parts = cut(folder, ".ab.cde..f.", most_lines=3)
    files = {
        "out1": [good("a"), good("c")],
        "err1": [bad("b", 2)],
        "err2": [bad("d", 1), bad(None, 2), bad("f", 3)],
    }
    tally = merge(folder, parts, files, [batch(1), batch(2, output=False)])
    rows = read_jsonl(folder.results)
    assert [row["id"] for row in rows] == [f"batch_req_{n}" for n in range(1, 12)]
    ids = [row["custom_id"] for row in rows]
    assert ids == [None, "a", "b", None, "c", "d", "e", None, None, "f", None]
    lines = [row["error"] and row["error"]["line"] for row in rows]
    assert lines == [1, None, 3, 4, None, 6, 7, 8, 9, 10, 11]
    assert (tally.requests, dict(tally.failures)) == (11, {"odd": 5, "boom": 4})
    assert sorted(path.name for path in folder.results.parent.iterdir()) == ["r.jsonl", "r.jsonl.run"]


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_lines_that_were_not_read_before_the_end_are_said_so(folder: RunFolder, status: str) -> None:
    """The first line is sent before the others are read; of those some had been refused."""
    parts = cut(folder, "abcd", most_lines=4)
    files = {"out1": [good("a")], "err1": [bad("c", 3)]}
    tally = merge(folder, parts, files, [batch(1, status=status)])
    rows = read_jsonl(folder.results)
    assert [row["custom_id"] for row in rows] == ["a", "b", "c", "d"]
    assert [row["error"] and row["error"]["line"] for row in rows] == [None, 2, 3, 4]
    assert (dict(tally.failures), dict(tally.stopped)) == ({"boom": 1}, {status: 2})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"out1": [good("a")], "err1": []}, "no answer to 'b' in part 1"),
        ({"out1": [good("b"), good("a")], "err1": []}, "no answer to 'a' in part 1"),
        ({"out1": [good("a"), good("a")], "err1": []}, "no answer to 'b' in part 1"),
        ({"out1": [good("a")], "err1": [bad(None, 1)]}, "no answer to 'b' in part 1"),
    ],
)
def test_answers_that_do_not_fit_are_never_written(
    folder: RunFolder, files: dict[str, list[Entry]], message: str
) -> None:
    folder.results.write_text("before", encoding="utf-8")
    parts = cut(folder, "ab", most_lines=3)
    with pytest.raises(CliError, match=f"the gateway has {message}"):
        merge(folder, parts, files, [batch(1)])
    assert folder.results.read_text(encoding="utf-8") == "before"


def test_a_file_that_is_gone_names_its_part(folder: RunFolder) -> None:
    parts = cut(folder, "abc", most_lines=1)
    files = {f"out{n}": [good(name)] for n, name in ((1, "a"), (3, "c"))}
    with pytest.raises(PartLost) as lost:
        merge(folder, parts, files, [batch(n, errors=False) for n in (1, 2, 3)])
    assert lost.value.number == 2
    assert not folder.results.exists()


def test_results_that_cannot_be_written_are_said_so(folder: RunFolder) -> None:
    parts = cut(folder, "a", most_lines=1)
    folder.results.mkdir()
    with pytest.raises(CliError, match=r"cannot write .*/r\.jsonl: Is a directory"):
        merge(folder, parts, {"out1": [good("a")]}, [batch(1, errors=False)])
