"""What is refused before the weights of a hub's model are fetched, through the real client and converter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compiling.helpers.small_hub import Repository, SmallHub
from tests.compiling.helpers.small_models import write_checkpoint
from tests.support.forking.children import ENGINE, TORCH, addresses, run

PREPARE = """
import shutil, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from types import SimpleNamespace
from compiling.base.errors import CompileError
from compiling.base.progress import Silence
from compiling.source.source import prepare
from tests.support.forking.children import TORCH, fork
fork(TORCH)
free = int(sys.argv[1])
if free:
    shutil.disk_usage = lambda folder: SimpleNamespace(free=free)
for name in sys.argv[3:]:
    try:
        print(prepare(name, Path(sys.argv[2]), progress=Silence(), types=("q4_0",)).name)
    except CompileError as error:
        print(f"{type(error).__name__}: {error}")
"""
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallHub]:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "llama", "llama", shards=1)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert WEIGHTS in files
    config = json.loads(files["config.json"])
    unknown = json.dumps({**config, "architectures": ["NoSuchForCausalLM"]}).encode()
    without = {name: data for name, data in files.items() if not name.startswith("tokenizer")}
    served = SmallHub(
        {
            "org/whole": Repository(files),
            "org/unknown": Repository({**files, "config.json": unknown}),
            "org/tokenless": Repository(without),
            "org/damaged": Repository({**files, "tokenizer.model": b"damaged"}),
            "org/empty": Repository({WEIGHTS: files[WEIGHTS]}),
        }
    )
    yield served
    served.stop()


def prepare(hub: SmallHub, home: Path, *names: str, free: int = 0) -> list[str]:
    """What is said of each of these repositories."""
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    env |= addresses(TORCH)
    env.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-P", "-c", PREPARE, str(free), str(home / "made"), *names]
    hub.asked.clear()
    done = run(ENGINE, command, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("converter_folder")
@pytest.mark.slow
def test_what_the_converter_does_not_know_is_not_fetched(hub: SmallHub, tmp_path: Path) -> None:
    unknown, tokenless, empty = prepare(hub, tmp_path, "org/unknown", "org/tokenless", "org/empty")
    assert unknown.startswith("UnknownError: org/unknown: its architecture NoSuchForCausalLM is not known to")
    assert "tokenless" in tokenless
    assert ": no tokenizer (one of tokenizer.model" in tokenless
    assert ": no config.json" in empty
    assert "config.json" in hub.asked
    assert WEIGHTS not in hub.asked
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.usefixtures("converter_folder")
@pytest.mark.slow
def test_what_may_only_be_for_want_of_weights_is_found_with_them(hub: SmallHub, tmp_path: Path) -> None:
    [damaged] = prepare(hub, tmp_path, "org/damaged")
    assert damaged.startswith("SourceError: damaged: cannot be converted: ")
    assert WEIGHTS in hub.asked
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.usefixtures("converter_folder")
@pytest.mark.slow
def test_what_disk_there_is_must_hold_what_follows(hub: SmallHub, tmp_path: Path) -> None:
    [said] = prepare(hub, tmp_path, "org/whole", free=60_000_000)
    assert "RoomError: " in said
    assert " for the download, 65 MB for whole as a GGUF, at least " in said
    assert WEIGHTS not in hub.asked
    assert prepare(hub, tmp_path, "org/whole") == ["whole-f32.gguf"]
    assert hub.asked.count(WEIGHTS) == 1
