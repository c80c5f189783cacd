"""From a source to its GGUF: once, whole or not at all, and without running what a checkpoint brings."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from compiling.base import resource_check
from compiling.base.errors import ConverterError, RoomError, SourceError
from compiling.base.progress import Silence
from compiling.source import converter
from compiling.source.source import prepare
from engine.host.system_memory import Memory
from engine.llama.model import read_shape
from tests.compiling.helpers.small_models import PADDED_VOCAB, WIDTH, write_checkpoint, write_vicuna
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.workers import ROOT, wait_until

pytestmark = pytest.mark.slow

FULL = SimpleNamespace(total=90_000_000, used=30_000_000, free=60_000_000)
EVIL = """
from pathlib import Path
Path({ran!r}).touch()
class HybridDNATokenizer:
    pass
"""
STUCK = """
import os, sys, threading
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--outfile") + 1])
out.write_bytes(b"GGUF, half written")
pid = out.with_suffix(".pid")
pid.with_suffix(".new").write_text(str(os.getpid()))
pid.with_suffix(".new").rename(pid)
threading.Event().wait()
"""
PREPARE = "import sys; from pathlib import Path; from compiling.base.progress import Silence\n" + (
    "from compiling.source.source import prepare; prepare(sys.argv[1], Path(sys.argv[2]), progress=Silence())"
)


class Heard(Silence):
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.shares: list[float] = []

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def note(self, share: float) -> None:
        self.shares.append(share)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("whole") / "llama", "llama")


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "llama"))


@pytest.mark.usefixtures("converter_folder", "forked_converters")
def test_a_killed_conversion_leaves_nothing_and_the_next_one_makes_it_once(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stuck = tmp_path / "made", tmp_path / "stuck"
    stuck.mkdir()
    (stuck / converter.SCRIPT).write_text(STUCK)
    killed = subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(llama), str(folder)],
        cwd=ROOT,
        env=os.environ | {converter.SETTING: str(stuck)},
    )
    part = folder / "llama-f32.gguf.part"
    wait_until(lambda: (part / "vocabulary.pid").exists())
    child = os.pidfd_open(int((part / "vocabulary.pid").read_text()))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert select.select([child], [], [], 30)[0], "the converter ends with us"
    os.close(child)
    assert [path.name for path in folder.iterdir()] == [part.name]

    heard = Heard()
    made = prepare(str(llama), folder, progress=heard)
    assert made == folder / "llama-f32.gguf"
    assert {path.name for path in folder.iterdir()} == {made.name, f"{made.name}.source"}
    assert heard.begun == ["converting llama to F32"]
    assert all(0 <= share <= 1 for share in heard.shares)
    shape = read_shape(str(made))
    assert (shape.architecture, shape.width, shape.vocab_size) == ("llama", WIDTH, PADDED_VOCAB)

    monkeypatch.setenv(converter.SETTING, str(stuck / "away"))  # it would be found missing
    assert prepare(str(llama), folder, progress=Silence()) == made
    os.utime(llama / "config.json")
    with pytest.raises(ConverterError, match=converter.SETTING):
        prepare(str(llama), folder, progress=Silence())


@pytest.mark.usefixtures("converter_folder", "forked_converters")
def test_vicunas_files_become_f16_without_its_rotary_tables(tmp_path: Path) -> None:
    made = prepare(str(write_vicuna(tmp_path / "vicuna")), tmp_path, progress=Silence())
    assert made.name == "vicuna-f16.gguf"
    assert read_shape(str(made)).vocab_size == PADDED_VOCAB


@pytest.mark.usefixtures("converter_folder", "forked_converters")
def test_code_of_a_checkpoint_does_not_run(copy: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (copy / "evil.py").write_text(EVIL.format(ran=str(ran)))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "HybridDNATokenizer"
    settings["auto_map"] = {"AutoTokenizer": ["evil.HybridDNATokenizer", None]}
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(SourceError) as caught:
        prepare(str(copy), tmp_path / "made", progress=Silence())
    assert len(str(caught.value).splitlines()) == 1
    assert not ran.exists()
    assert not list((tmp_path / "made").iterdir())
    job = converter.Job(copy, "bare", tmp_path / "bare.gguf", vocab_only=True)
    with pytest.raises(SourceError):
        converter.run(converter.find(Silence()), [job], Silence())
    assert ran.exists(), "the code is such that the converter alone runs it"


@pytest.mark.usefixtures("converter_folder", "forked_converters")
def test_an_unknown_architecture_is_named(copy: Path, tmp_path: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchForCausalLM"]}))
    with pytest.raises(SourceError, match=r"NoSuchForCausalLM is not known to llama.cpp"):
        prepare(str(copy), tmp_path / "made", progress=Silence())
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.usefixtures("converter_folder", "forked_converters")
def test_an_unknown_tokenizer_is_found(copy: Path, tmp_path: Path) -> None:
    (copy / "tokenizer.model").unlink()
    (copy / "tokenizer_config.json").unlink()
    alphabet = {letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    own = Tokenizer(models.BPE(alphabet, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=own).save_pretrained(copy)
    with pytest.raises(SourceError, match=r"its tokenizer splits text in a way that llama.cpp"):
        prepare(str(copy), tmp_path / "made", progress=Silence())
    assert not list((tmp_path / "made").iterdir())


def test_what_there_is_no_room_for_is_refused_before_anything_is_made(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _folder: FULL)
        with pytest.raises(
            RoomError, match=r"are needed \(6. MB for llama as a GGUF\), 60 MB are free; give"
        ):
            prepare(str(llama), tmp_path / "made", progress=Silence())
        with pytest.raises(
            RoomError, match=r"\(6. MB for llama as a GGUF, at least \d+ kB for the files made from"
        ):
            prepare(str(llama), tmp_path / "made", progress=Silence(), types=("q8_0",))
    monkeypatch.setattr(resource_check, "look_at_memory", lambda: Memory(10**9, 10**8))
    with pytest.raises(RoomError, match=r"llama: 8.. MB of memory are needed to convert it, and 100 MB are"):
        prepare(str(llama), tmp_path / "made", progress=Silence())
    monkeypatch.setattr(resource_check, "CONVERTER_BYTES", 0)
    with pytest.raises(RoomError, match=r"llama as a GGUF: 30. MB of memory are needed to measure it"):
        prepare(str(llama), tmp_path / "made", progress=Silence(), types=("q8_0",))
    (tmp_path / "file").touch()
    with pytest.raises(RoomError, match="cannot be written"):
        prepare(str(llama), tmp_path / "file" / "made", progress=Silence())
    assert not list((tmp_path / "made").iterdir())


def test_a_file_of_somebody_else_is_not_replaced(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "llama-f32.gguf").write_bytes(b"precious")
    with pytest.raises(SourceError, match="exists, and is not as this command wrote it"):
        prepare(str(llama), tmp_path, progress=Silence())
    (tmp_path / "llama-f32.gguf.source").write_text('{"result": [5, 6]}')
    with pytest.raises(SourceError, match="exists, and is not as this command wrote it"):
        prepare(str(llama), tmp_path, progress=Silence())
    assert (tmp_path / "llama-f32.gguf").read_bytes() == b"precious"


def test_a_gguf_is_its_own_source(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    assert prepare(str(path), tmp_path / "made", progress=Silence()) == path


@pytest.mark.parametrize(
    ("name", "keep", "said"),
    [
        ("cut.gguf", 0.5, "llama.cpp cannot load it"),
        ("cut.gguf", 0.01, "llama.cpp cannot load it"),
        ("empty.gguf", 0.0, "not a GGUF file"),
        ("model-00001-of-00003.gguf", 1.0, "one of 3 parts; join them"),
    ],
)
def test_a_gguf_that_is_not_whole_is_refused(tmp_path: Path, name: str, keep: float, said: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / name).write_bytes(data[: int(keep * len(data))])
    with pytest.raises(SourceError, match=said):
        prepare(str(tmp_path / name), tmp_path / "made", progress=Silence())


@pytest.mark.parametrize(
    "name", ["no/such/folder", "away.gguf", "models/away.gguf", "two words", "./away", "../away"]
)
def test_a_source_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match="no such file or folder, nor a hub's name"):
        prepare(name, tmp_path, progress=Silence())
