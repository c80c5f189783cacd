"""Lines cut into files of batch lines, which the gateway's own reader takes as they are."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.base.errors import CliError
from cli.prompts.formats import Format
from cli.prompts.prompt_reader import PromptReader, ReadOptions
from cli.run.folder import RunFolder
from cli.run.shards import PartFiles, Sent, order
from tasks.batches.line_decoder import LineDecoder
from tasks.records.packed_line import Line
from tasks.schema.openai_requests import JOBS
from tests.cli.helpers.running import read_jsonl
from tests.support.workers import ROOT

CHAT = {
    "custom_id": "chat",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "é"}], "max_completion_tokens": 3, "stop": "END"},
}


def cut(folder: RunFolder, values: list[Any], **limits: int) -> list[int]:
    """Cut these lines, objects or text; how many each part has."""
    raw = "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values).encode()
    with PartFiles(folder, **limits) as files:
        for line in PromptReader(ReadOptions(), Format.JSONL, Counter()).read(
            io.BufferedReader(io.BytesIO(raw))
        ):
            files.add(line)
    return [part.lines for part in files.parts]


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    with RunFolder(tmp_path / "r.jsonl") as folder:
        yield folder


def test_every_line_of_a_part_is_one_the_gateway_takes(folder: RunFolder) -> None:
    lines = [{"prompt": "x", "raw": True, "model": "m"}, CHAT, {"prompt": "y", "model": "other", "seed": 0}]
    assert cut(folder, lines) == [3]
    decoder = LineDecoder(JOBS, 10_000, 64)
    raw = folder.part(1).read_bytes().splitlines()
    decoded = [decoder.decode(number, line) for number, line in enumerate(raw, 1)]
    found = [(line.custom_id, line.model) for line in decoded if isinstance(line, Line)]
    assert found == [("line-1", "m"), ("chat", ""), ("line-3", "other")]
    first, chat, last = (json.loads(line.request) for line in decoded if isinstance(line, Line))
    assert (first["prompt"], chat["messages"], last["prompt"]) == ("x", CHAT["body"]["messages"], "y")
    assert chat["stop"] == ["END"]


def test_the_order_says_what_becomes_of_each_line(folder: RunFolder) -> None:
    assert cut(folder, [{"prompt": "x"}, "", "{", {"prompt": "", "custom_id": "b"}, CHAT]) == [2]
    first, broken, empty, chat = order(folder)
    assert (first, chat) == (Sent(1, "line-1"), Sent(5, "chat"))
    assert isinstance(broken, dict)
    assert isinstance(empty, dict)
    assert (broken["id"], broken["custom_id"], broken["error"]["line"]) == ("batch_req_2", None, 3)
    assert (empty["id"], empty["custom_id"], empty["error"]["param"]) == ("batch_req_3", "b", "prompt")


@pytest.mark.parametrize(
    ("count", "most", "parts"), [(1, 3, [1]), (3, 3, [3]), (4, 3, [3, 1]), (7, 3, [3, 3, 1])]
)
def test_a_part_has_so_many_lines_at_most(folder: RunFolder, count: int, most: int, parts: list[int]) -> None:
    assert cut(folder, [{"prompt": str(n)} for n in range(count)], most_lines=most) == parts
    ids = [line["custom_id"] for n in range(len(parts)) for line in read_jsonl(folder.part(n + 1))]
    assert ids == [f"line-{n + 1}" for n in range(count)]


def test_a_part_has_so_many_bytes_at_most(folder: RunFolder) -> None:
    lines = [{"prompt": "x" * 100, "custom_id": str(n)} for n in range(10)]
    assert cut(folder, lines[:1]) == [1]
    size = folder.part(1).stat().st_size
    assert cut(folder, lines, most_bytes=3 * size) == [3, 3, 3, 1]
    assert cut(folder, lines, most_bytes=3 * size - 1) == [2] * 5
    assert cut(folder, lines[:2], most_bytes=1) == [1, 1], "a line that is too long goes alone"


def test_a_disk_that_is_full_is_said_so(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CliError, match=r"cannot write .*/order\.jsonl: No space left"):
        cut(folder, [CHAT])


CUT = """
import io, sys
from collections import Counter
from pathlib import Path
from cli.run.shards import PartFiles
from cli.prompts.formats import Format
from cli.prompts.prompt_reader import PromptReader, ReadOptions
from cli.run.folder import RunFolder
class Lines(io.RawIOBase):
    left = int(sys.argv[2])
    def readable(self):
        return True
    def readinto(self, buffer):
        line = b'{"prompt": "x", "custom_id": "%0100d"}\\n' % self.left if self.left else b""
        self.left -= bool(line)
        buffer[: len(line)] = line
        return len(line)
with RunFolder(Path(sys.argv[1])) as folder, PartFiles(folder, most_lines=1000) as files:
    for line in PromptReader(ReadOptions(), Format.JSONL, Counter()).read(io.BufferedReader(Lines())):
        files.add(line)
    assert len(files.parts) == int(sys.argv[2]) // 1000
print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_cutting_takes_no_more_memory_for_more_lines(tmp_path: Path) -> None:
    def peak_kb(count: int) -> int:
        command = [sys.executable, "-c", CUT, str(tmp_path / "r"), str(count)]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)

    assert peak_kb(50_000) - peak_kb(10_000) < 5_000, "a dict of ids alone would take 11 MB more"
