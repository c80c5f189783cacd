"""`medusaq train-heads` as a person runs it, on the tiny model, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.processor import usable_cores
from tests.cli.helpers.in_process import InProcessCli
from training.collection.shards import Collection

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "cli", "train-heads", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_from_a_model_to_heads(
    tiny_gguf: str, prompts: Path, tmp_path: Path, in_process: InProcessCli
) -> None:
    pytest.importorskip("torch", reason="the extra train is not installed")
    output = tmp_path / "heads.safetensors"
    small = ["--tokens", 3000, "--max-tokens", 24, "--epochs", 1, "--heads", 2, "--threads", 1]
    ended = run(tiny_gguf, "--prompts", prompts, "-o", output, *small)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{output}: ")
    assert "tokens a step; top-1/top-5" in ended.stdout
    assert output.exists()
    again = in_process("train-heads", tiny_gguf, "--prompts", prompts, "-o", output, *small)
    assert again.returncode == 0
    assert again.stdout == ended.stdout
    assert "tokens are there already" in again.stderr


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_two_processes_collect_for_one_training(
    tiny_gguf: str, prompts: Path, tmp_path: Path, in_process: InProcessCli
) -> None:
    pytest.importorskip("torch", reason="the extra train is not installed")
    output = tmp_path / "heads.safetensors"
    small = ["--tokens", 1600, "--max-tokens", 24, "--epochs", 1, "--heads", 2, "--processes", 2]
    ended = in_process("train-heads", tiny_gguf, "--prompts", prompts, "-o", output, *small)
    assert ended.returncode == 0, ended.stderr
    parts = [Collection(tmp_path / "heads.safetensors.work" / "states" / f"part-{k}") for k in range(2)]
    assert [part.done()[1] >= 800 for part in parts] == [True, True]
    texts = [{tuple(a.prompt.tolist()) for shard in part.shards() for a in shard} for part in parts]
    assert not texts[0] & texts[1], "each has its own prompts"
    again = in_process("train-heads", tiny_gguf, "--prompts", prompts, "-o", output, *small)
    assert again.returncode == 0, again.stderr
    assert again.stdout == ended.stdout


def test_prompts_are_composed_where_none_are_given(
    tiny_gguf: str,
    tmp_path: Path,
    in_process: InProcessCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="the extra train is not installed")
    monkeypatch.setattr("cli.commands.heads.train.COMPOSED_PROMPTS", 2_000)
    output = tmp_path / "heads.safetensors"
    small = ["--max-tokens", 8, "--epochs", 1, "--threads", 1]
    trial = in_process("train-heads", tiny_gguf, "-o", output, "--tokens", 500, *small)
    assert trial.returncode == 0, trial.stderr
    ended = in_process("train-heads", tiny_gguf, "-o", output, "--tokens", 2000, *small)
    assert ended.returncode == 0, ended.stderr
    assert "of 2000 tokens are there already" in ended.stderr
    assert "training starts over: " in ended.stderr
    states = Collection(tmp_path / "heads.safetensors.work" / "states")
    prompts = {tuple(a.prompt.tolist()) for shard in states.shards() for a in shard}
    assert len(prompts) == len(states.done()[0]) >= 2000 // 8, "none is asked twice while there are others"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{model}", "-o", "{folder}/none/h"], 2, "-o: the folder {folder}/none does not exist"),
        (["{model}", "-o", "{folder}"], 2, "-o: {folder} is a folder"),
        (["{model}", "-o", "."], 2, "-o: . is a folder"),
        (["{model}", "-o", "{folder}/" + "h" * 256], 2, "-o: cannot write {folder}/hhh"),
        (["{model}", "-o", "{folder}/h", "--vocabulary", "7"], 2, "Invalid value for '--vocabulary'"),
        (["{model}", "-o", "{folder}/h", "--device", "abacus"], 1, "no device abacus: "),
        (
            ["{model}", "-o", "{folder}/h", "--work", "{model}"],
            1,
            "cannot use the folder {model}/states: Not",
        ),
        (["{model}", "-o", "{folder}/h", "--prompts", "{folder}/p"], 2, "{folder}/p cannot be read"),
        (["{folder}/none.gguf", "-o", "{folder}/h"], 3, "{folder}/none.gguf: no such file"),
        (["{model}", "-o", "{folder}/h", "--learning-rate", "7"], 1, "learning_rate must be"),
        (["{model}", "-o", "{folder}/h", "--soft", "2"], 1, "soft must be"),
        (["{model}", "-o", "{folder}/h", "--begin", "{folder}/b"], 1, "cannot read {folder}/b: No such"),
        (["{model}", "-o", "{folder}/h", "--processes", "999"], 1, "999 processes need as many cores"),
        (["{model}"], 2, "Missing option '--output' / '-o'"),
    ],
)
def test_what_is_wrong_is_one_line(
    tiny_gguf: str,
    tmp_path: Path,
    in_process: InProcessCli,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    pytest.importorskip("torch", reason="the extra train is not installed")
    places = {"model": tiny_gguf, "folder": str(tmp_path)}
    ended = in_process("train-heads", *(argument.format(**places) for argument in arguments))
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.splitlines()[-1].startswith(f"error: {message.format(**places)}")
    assert len(ended.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("collection.json")), "nothing was collected in vain"


def test_without_torch_it_says_how_to_get_it(tiny_gguf: str, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from cli.main import main; main()"
    command = [sys.executable, "-c", code, "train-heads", tiny_gguf, "-o", str(tmp_path / "h")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: training needs torch: pip install 'medusaq[worker,medusa,train]'\n"
