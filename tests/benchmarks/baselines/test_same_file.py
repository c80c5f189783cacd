"""The comparison with llama-server, against a program that takes its options and answers what a test says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.measured.figures import read
from engine import EngineConfig
from engine.base.config import AS_SHIPPED
from tests.benchmarks.baselines import llama_server, same_file, step_profile
from tests.benchmarks.baselines.same_file import Load
from tests.benchmarks.baselines.step_profile import Kind
from tests.benchmarks.common import ToolFailed
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.measuring.report import Report
from tests.support.workers import ROOT

PROMPTS = ["one", "one two", "one two three"]
LOADS = [(AS_SHIPPED, Load("few", PROMPTS, 8))]
SERVES = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.answer(200, {{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = asked["max_tokens"]
        warm_up = not asked["ignore_eos"]
        {post}
        usage = {{"prompt_tokens": 5, "completion_tokens": tokens}}
        self.answer(200, {{"usage": usage, "timings": {{"cache_n": 2}}}})
    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


def server(folder: Path, post: str = "pass", script: str = SERVES) -> Path:
    """post: what it does with a request, before it answers as it was asked to."""
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\n{script.format(post=post)}", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.stack
def test_what_the_server_answers_is_summed_without_the_warm_up(tmp_path: Path, model: Path) -> None:
    run = llama_server.measure(server(tmp_path), model, PROMPTS, 8, slots=2, ignore_eos=True)
    assert (run.requests, run.prompt_tokens, run.cached_tokens, run.generated_tokens) == (3, 15, 6, 24)
    assert 0 < run.thin_s < run.wall_s


@pytest.mark.stack
@pytest.mark.parametrize(
    ("post", "said"),
    [
        ("if not warm_up: return self.answer(500, 'no room')", '^llama-server answered 500: "no room"$'),
        ("os._exit(1)", "^llama-server broke off: [^\n]+$"),
        ("if not warm_up: tokens = 4", "^llama-server wrote 12 tokens where 24 were asked for$"),
    ],
)
def test_a_server_that_fails_is_one_line(tmp_path: Path, model: Path, post: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        same_file.measure(server(tmp_path, post), model, LOADS, 1, Report("-"))


@pytest.mark.stack
def test_each_system_is_told_beside_the_server(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    same_file.measure(server(tmp_path), model, LOADS, 2, Report("-", path))
    said = capsys.readouterr().out.splitlines()
    names = ["llama-server", "medusaq", "medusaq, no drafts"]
    assert [line[:24].strip() for line in said[1:7]] == [*names, *reversed(names)], "they take turns"
    table, steps = read(path)
    assert [row[:3] for row in table.rows] == [[AS_SHIPPED, "few", name] for name in names]
    assert table.rows[0][4] == "1.00 (1.00 to 1.00)"
    assert table.rows[0][5] == "9 of 15"
    assert "of 15" not in table.rows[1][5], "ours counts its own tokens"
    assert [row[2] for row in steps.rows] == list(Kind)


@pytest.mark.slow
def test_the_kinds_of_steps_are_those_of_all_tokens(model: Path) -> None:
    config = EngineConfig(model=str(model), slots=2, kv_cells=512, weights=AS_SHIPPED, speculation=False)
    run, profile = step_profile.measure(config, ["word " * 20] * 3, 8)
    assert (run.requests, run.generated_tokens) == (3, 24)
    assert sum(one.emitted for one in profile.kinds.values()) == 24
    assert all(0 < one.decode_s < one.seconds for one in profile.kinds.values())
    assert sum(one.seconds for one in profile.kinds.values()) < profile.wall_s == run.wall_s
    thin, full = profile.kinds[Kind.THIN], profile.kinds[Kind.FULL]
    assert thin.emitted == thin.ready > 0, "one request, a token a step"
    assert full.emitted == full.ready > 0
    assert len((profile + profile).rows()) == len(Kind)


@pytest.mark.slow
def test_a_server_ends_with_the_command(tmp_path: Path, model: Path) -> None:
    note = tmp_path / "pid"
    hangs = server(tmp_path, f"open({str(note)!r}, 'w').write(str(os.getpid())); import time; time.sleep(60)")
    with subprocess.Popen(_command(tmp_path, model, "--server", str(hangs)), cwd=ROOT) as running:
        pid = int(_in_time(lambda: note.exists() and note.read_text()))
        running.terminate()
    assert running.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _in_time(look: Callable[[], str | bool]) -> str:
    give_up_at = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return str(found)


def _command(folder: Path, model: Path, *options: str) -> list[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"category": "qa", "turns": ["Why?"]}) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "tests.benchmarks", "--only", "server", "--formats", AS_SHIPPED]
    return [*command, "--model", str(model), "--prompts", str(prompts), *options]


@pytest.mark.slow
def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path, model: Path) -> None:
    broken = server(tmp_path, script="raise SystemExit('no such option')")
    no_model = tmp_path / "model.gguf"
    no_model.write_bytes(b"text")

    def said(*options: str) -> tuple[int, str]:
        command = _command(tmp_path, model, *options)
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert "Traceback" not in ended.stderr
        return ended.returncode, (ended.stderr or ended.stdout).strip().splitlines()[-1]

    assert said() == (0, "left out: give --server with a llama-server binary")
    assert said("--server", str(broken)) == (1, "error: llama-server did not come up: no such option")
    status, line = said("--pairs", "0")
    assert status == 2
    assert line.endswith("error: argument --pairs: 0: must be a whole number of at least 1")
    refused = said("--server", str(broken), "--model", str(no_model))
    assert refused == (1, f"error: {no_model}: not a GGUF file")
