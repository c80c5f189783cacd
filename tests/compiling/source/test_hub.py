"""The hub, by huggingface_hub's own client against a server on loopback.

Each case in a process of its own: that client reads HF_ENDPOINT and HF_HOME when it is imported.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compiling.helpers.small_hub import Repository, SmallHub
from tests.support.forking.children import ENGINE, run

CHOOSE = """
import sys, warnings
warnings.simplefilter("ignore")
from compiling.source import checkpoint, hub
from compiling.base.errors import CompileError
try:
    folder = hub.choose(sys.argv[1], checkpoint.wanted_files)
except CompileError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(*sorted(path.name for path in folder.iterdir()))
"""
WITHOUT_CLIENT = f"import sys; sys.modules['huggingface_hub'] = None\n{CHOOSE}"
FULL_DISK = f"import shutil; shutil.disk_usage = lambda path: shutil._ntuple_diskusage(9, 6, 3)\n{CHOOSE}"
FILES = {
    "README.md": b"a model",
    "config.json": b"{}",
    "tokenizer.model": b"pieces",
    "tokenizer_evil.py": b"raise SystemExit",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickles",
    "onnx/model.onnx": b"graph",
}
PICKLES = {name: data for name, data in FILES.items() if name != "model.safetensors"}


@pytest.fixture(scope="module")
def hub() -> Iterator[SmallHub]:
    served = SmallHub(
        {
            "org/whole": Repository(FILES),
            "org/pickles": Repository(PICKLES),
            "org/gated": Repository(FILES, gated=True),
            "org/broken": Repository(FILES, cut={"model.safetensors"}),
            "org/large": Repository(
                {**FILES, "model.safetensors": bytes(24_000_000)}, cut={"model.safetensors"}
            ),
        }
    )
    yield served
    served.stop()


def choose(name: str, home: Path, url: str, code: str = CHOOSE) -> tuple[str, str]:
    """What was fetched, or the error."""
    env = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    done = run(ENGINE, [sys.executable, "-P", "-c", code, name], env=env)
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.slow
def test_safetensors_are_fetched_once_and_no_code(hub: SmallHub, tmp_path: Path) -> None:
    hub.asked.clear()
    for _ in range(2):
        assert choose("org/whole", tmp_path, hub.url) == ("config.json model.safetensors tokenizer.model", "")
    assert sorted(hub.asked) == ["config.json", "model.safetensors", "tokenizer.model"]
    away = "http://127.0.0.1:9"
    assert choose("org/whole", tmp_path, away) == ("config.json model.safetensors tokenizer.model", "")


def test_pickles_are_fetched_where_there_is_nothing_else(hub: SmallHub, tmp_path: Path) -> None:
    assert choose("org/pickles", tmp_path, hub.url) == ("config.json pytorch_model.bin tokenizer.model", "")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("org/nothing", CHOOSE, "HubError: org/nothing: no such repository on the hub, or a private one"),
        ("org/gated", CHOOSE, "HubError: org/gated: gated: accept its terms on the hub's page"),
        (
            "org/broken",
            CHOOSE,
            "HubError: org/broken: the download broke off, repeat to go on: IncompleteRead",
        ),
        ("org/whole", WITHOUT_CLIENT, "pip install 'medusaq[local]'"),
        ("org/whole", FULL_DISK, "RoomError: org/whole: 15 B of disk are needed in "),
        ("org/a..b", CHOOSE, "HubError: org/a..b: not a name of the hub"),
    ],
)
@pytest.mark.slow
def test_what_a_hub_does_not_give_is_said_in_one_line(
    hub: SmallHub, tmp_path: Path, name: str, code: str, said: str
) -> None:
    fetched, error = choose(name, tmp_path, hub.url, code)
    assert fetched == ""
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.rglob("model.safetensors")), "nothing half-fetched under a final name"


def test_what_was_fetched_before_a_download_broke_off_needs_no_room(hub: SmallHub, tmp_path: Path) -> None:
    assert "broke off" in choose("org/large", tmp_path, hub.url)[1]
    said = choose("org/large", tmp_path, hub.url, FULL_DISK)[1]
    assert re.search(r"1[2-4] MB of disk are needed in ", said), "half of 24, but for the client's last piece"


def test_a_hub_that_is_away_is_said_in_one_line(tmp_path: Path) -> None:
    fetched, error = choose("org/whole", tmp_path, "http://127.0.0.1:9")
    assert (fetched, len(error.splitlines())) == ("", 1)
    assert "HubError: org/whole: the hub cannot be reached: " in error
