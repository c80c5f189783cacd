"""No process looks up a name or sends a packet beyond loopback, but where it was told to."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.helpers.running import COMMAND, Cli, texts, write_jsonl
from tests.compiling.helpers.small_models import write_checkpoint
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.network.recorder import CannotRecord, Recorder
from tests.support.workers import ROOT, wait_until

pytestmark = pytest.mark.stack
TOLD = "receiver.example"
RUNTIME = "onnxruntime_pybind11_state"
FETCH = """
import sys, urllib.request
print(*(urllib.request.urlopen(url, timeout=30).status for url in sys.argv[1:]))
"""
UPLOAD_S = 15.0  # after which ONNX Runtime 1.32 has looked up its vendor's host, where it is let


@pytest.fixture
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    try:
        recorder = Recorder(tmp_path_factory.mktemp("recorder"))
    except CannotRecord as error:
        pytest.skip(f"no network of its own can be made here: {error}")
    yield recorder
    recorder.close()


@pytest.fixture
def real(tmp_path: Path, recorder: Recorder) -> Iterator[Cli]:
    """The command with the real engine, in the recording network."""
    recorder.check_itself()
    cli = Cli(tmp_path)
    cli.command = [*recorder.command, *COMMAND]
    cli.env["MEDUSAQ_ENGINE_FACTORY"] = "engine:load"
    # As other tests have it, so that the speed of this machine is measured once for all of them.
    cli.env |= {"MEDUSAQ_BATCH_INVARIANT": "1", "MEDUSAQ_SLOTS": "4"}
    for switch in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        cli.env.pop(switch, None)
    yield cli
    cli.close()


def holds(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def fetched(recorder: Recorder, *urls: str) -> str:
    """The status of each."""
    command = [sys.executable, *recorder.command, "-c", FETCH, *urls]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_stack_asks_for_what_it_was_told_and_nothing_else(real: Cli, recorder: Recorder) -> None:
    running = real.start("up", "--port", "0", "--flower-port", "0")
    url = running.wait_for("  gateway  ", 180).split()[-1]
    flower = running.wait_for("  Flower   ").split()[-1]
    assert holds(real.service("worker"), RUNTIME), "it runs the heads"
    loaded = time.monotonic()
    told = real(
        "submit", "hello", "--wait", "--max-tokens", "8", "--webhook", f"http://{TOLD}/", "--url", url
    )
    assert told.returncode == 0, told.stderr
    write_jsonl(real.folder / "p.jsonl", [{"prompt": f"say {n}", "max_tokens": 4} for n in range(4)])
    batch = real("run", "p.jsonl", "-o", "r.jsonl", "--url", url)
    assert batch.returncode == 0, batch.stderr
    assert len(texts(real.folder / "r.jsonl")) == 4
    assert real("doctor").returncode == 0
    assert "all is well" in real("top", "--once", "--url", url).stdout
    wait_until(lambda: f"name {TOLD}" in recorder.lines)
    pages = fetched(recorder, f"{url}/docs", f"{url}/openapi.json", f"{url}/metrics", flower)
    assert pages == "200 200 200 200\n"
    wait_until(lambda: time.monotonic() > loaded + UPLOAD_S, 2 * UPLOAD_S)
    running.send(signal.SIGINT)
    assert running.wait() == 0
    assert recorder.asked() == {f"name {TOLD}"}


@pytest.mark.thorough
def test_making_models_and_heads_asks_for_nothing(
    real: Cli, recorder: Recorder, prompts: Path, converter_folder: Path
) -> None:
    """What loads torch, transformers, the hub's client and ONNX Runtime."""
    folder = real.folder
    real.env |= {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HOME": str(folder / "hub")}
    real.env |= {"XDG_DATA_HOME": str(folder / "data"), "MEDUSAQ_CONVERTER": str(converter_folder)}
    (folder / "text").write_text("abc jade bad cafe, 12 34. " * 8, encoding="utf-8")
    write_tiny_gguf(folder / "tiny.gguf")
    write_checkpoint(folder / "checkpoint", "llama")
    small = ("--tokens", "600", "--max-tokens", "24", "--epochs", "1", "--heads", "1", "--threads", "1")
    quick = ("--types", "q8_0", "--text", "text", "--rounds", "1", "--threads", "1")
    commands = (
        ("models", "add", "tiny", "tiny.gguf"),
        ("train-heads", "tiny.gguf", "--prompts", str(prompts), "-o", "heads.safetensors", *small),
        ("export-heads", "heads.safetensors", "--onnx", "heads.onnx", "--model", "tiny.gguf"),
        ("compile", "checkpoint", "-o", "out", *quick),
    )
    for command in commands:
        ended = real(*command)
        assert ended.returncode == 0, ended.stderr
    assert recorder.asked() == set()


HUB_CLIENT = """
import compiling.source.hub, os
from huggingface_hub import constants
from huggingface_hub.utils import send_telemetry
assert constants.HF_HUB_DISABLE_TELEMETRY
assert constants.HF_HUB_DISABLE_XET
send_telemetry("medusaq")
"""


def test_the_hub_client_that_we_load_reports_nothing(real: Cli, recorder: Recorder) -> None:
    command = [sys.executable, *recorder.command, "-c", HUB_CLIENT]
    subprocess.run(command, cwd=ROOT, env=real.env, check=True, timeout=60)
    assert recorder.asked() == set()
