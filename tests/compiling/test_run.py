"""A compilation from a GGUF to its rows: on a tiny model, broken off, and changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader

from compiling.base.errors import CompileError
from compiling.base.formats import unpacked_format
from compiling.base.state import NAME
from compiling.machine_format import own_folder
from compiling.measure import child
from compiling.result.compilation import COUNTS, Compiled, Options
from compiling.result.recommendation import Load
from compiling.run import WORK, compile_model
from engine.base.errors import ImportanceError
from engine.llama.model import default_model_path
from engine.weights.quantise import requantise
from tests.compiling.helpers import measuring
from tests.compiling.helpers.compilations import TYPES, Steps, given, names
from tests.support.tuned import constants
from tests.support.workers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]
ASK = child.ask

SPEED = "compiling.measure.speed"
BRIEF = {"PROMPTS": ["Say hello."] * 2, "OUTPUT": 4, "LEAST_ROUNDS": 1, "ROUNDS_S": 0.0, "PREFILL": 64}


@pytest.fixture(scope="module")
def done(models: Path) -> tuple[Compiled, Steps]:
    """A whole compilation, in models/out."""
    steps = Steps()
    return compile_model(given(models, models / "out"), steps), steps


@pytest.fixture(autouse=True)
def inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once `done` was measured whole, in processes of their own, the others do it briefly and in this one."""
    request.getfixturevalue("done")
    for name, value in BRIEF.items():
        monkeypatch.setattr(f"{SPEED}.{name}", value)
    monkeypatch.setattr(child, "ask", measuring.inside)


@pytest.fixture
def out(done: tuple[Compiled, Steps], models: Path, tmp_path: Path) -> Path:
    """A copy of its folder."""
    assert done[0].rows
    return Path(shutil.copytree(models / "out", tmp_path / "out"))


def test_every_type_is_made_and_measured(done: tuple[Compiled, Steps], models: Path) -> None:
    compiled, steps = done
    assert [row.type for row in compiled.rows] == ["source (f32)", *TYPES]
    source, fine, coarse = compiled.rows
    assert (source.quality.kl, source.quality.top1) == (0.0, 1.0)
    assert 0 < fine.quality.kl < coarse.quality.kl
    assert source.bytes > fine.bytes > coarse.bytes
    assert coarse.path == str(models / "out" / "tiny.q4_0.gguf")
    assert compiled.exact == source.quality, "F32 is exact itself"
    assert [row.ratio(source, COUNTS[Load.ONE]) > 0 for row in compiled.rows] == [True] * 3
    assert names(models / "out") == {"tiny.q8_0.gguf", "tiny.q4_0.gguf", NAME}, "and nothing else is left"
    assert len(steps.begun) == steps.planned == 8


def test_what_is_done_is_not_done_again(done: tuple[Compiled, Steps], models: Path, out: Path) -> None:
    steps = Steps()
    assert compile_model(given(models, models / "out"), steps).rows == done[0].rows
    assert steps.begun == []
    tight = compile_model(replace(given(models, models / "out"), max_kl=0.0, load=Load.ONE), steps)
    assert (tight.recommendation.type, steps.begun) == ("source (f32)", [])
    (out / "tiny.q8_0.gguf").unlink()
    compile_model(given(models, out), steps)
    assert steps.begun == ["q8_0: writing"]


def test_a_round_counts_where_all_were_measured_in_it(models: Path, out: Path) -> None:
    class Stopped(Steps):
        def begin(self, what: str) -> None:
            super().begin(what)
            if what == "f16: speed, round 1 of 1":
                raise KeyboardInterrupt

    def timed(steps: Steps) -> list[str]:
        return [what.partition(":")[0] for what in steps.begun if "speed" in what]

    more, again, fewer = replace(given(models, out), types=("q8_0", "f16")), Steps(), Steps()
    with pytest.raises(KeyboardInterrupt):
        compile_model(more, Stopped())
    compile_model(more, again)
    assert timed(again) == ["source (f32)", "q8_0", "f16"], "though two were measured when it was stopped"
    compile_model(replace(more, types=("q8_0",)), fewer)
    assert timed(fewer) == []
    compile_model(given(models, out), fewer)
    assert timed(fewer) == ["source (f32)", *TYPES], "q4_0 was measured before the others"


def test_what_was_half_written_goes(models: Path, out: Path) -> None:
    part = out / "tiny.q8_0.gguf.1234.part"
    part.write_bytes(b"GGUF")
    (out / WORK).mkdir()
    (out / WORK / "reference-0.f32").write_bytes(b"of another text")
    compile_model(given(models, out), Steps())
    assert names(out) == {"tiny.q8_0.gguf", "tiny.q4_0.gguf", NAME}


def test_f16_is_measured_itself_and_is_not_the_exact_values_of_f32(models: Path, out: Path) -> None:
    compiled = compile_model(replace(given(models, out), types=("f16",)), Steps())
    assert compiled.rows[1].quality.kl > 0
    assert compiled.exact == compiled.rows[0].quality


def test_a_record_that_went_while_outputs_are_kept_is_made_anew(models: Path, tmp_path: Path) -> None:
    class Stopped(Steps):
        def begin(self, what: str) -> None:
            super().begin(what)
            if what == "q8_0: writing":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_model(given(models, tmp_path), Stopped())
    assert list((tmp_path / WORK).glob("reference-*.f32"))
    (tmp_path / NAME).unlink()
    assert compile_model(given(models, tmp_path), Steps()).exact.kl == 0.0


def test_a_quantised_source_is_measured_against_its_exact_values(
    done: tuple[Compiled, Steps], models: Path, tmp_path: Path
) -> None:
    options = replace(given(models, tmp_path), source=done[0].rows[2].path, types=("f16", "q4_0"))
    steps = Steps()
    compiled = compile_model(options, steps)
    assert steps.said == ["q4_0 is left out: the source is in this format"]
    source, exact = compiled.rows
    assert source.type == "source (q4_0)"
    assert 0 < source.quality.kl < done[0].rows[2].quality.kl, "its kernels round, its weights are its own"
    assert exact.quality.kl == 0.0
    assert exact.quality.perplexity == compiled.exact.perplexity
    assert names(tmp_path) == {"tiny.f16.gguf", NAME}


@pytest.mark.parametrize(("largest", "unpacked"), [(1.0, "f16"), (1e5, "f32")])
def test_exact_values_of_bf16_are_held_by_the_format_they_are_unpacked_to(
    models: Path, tmp_path: Path, largest: float, unpacked: str
) -> None:
    wide = Path(shutil.copy(models / "tiny.f32.gguf", tmp_path / "wide.f32.gguf"))
    GGUFReader(wide, "r+").tensors[0].data[3, 5] = largest
    source = tmp_path / "wide.bf16.gguf"
    requantise(str(wide), str(source), "bf16", threads=1)
    assert unpacked_format(str(source)) == unpacked
    options = replace(given(models, tmp_path / "out"), source=str(source), types=("f32",))
    assert compile_model(options, Steps()).rows[1].quality.kl < 1e-4


def test_an_importance_matrix_is_made_and_used(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrix in a process of its own, which no other test starts."""
    starts = {"compiling.measure.importance": ASK}
    monkeypatch.setattr(
        child, "ask", lambda module, *more: starts.get(module, measuring.inside)(module, *more)
    )
    options = replace(given(models, tmp_path / "out"), types=("iq4_nl",), imatrix=tmp_path / "words")
    (tmp_path / "words").write_text("abc jade bad cafe, 12 34. " * 60)
    steps = Steps()
    compiled = compile_model(options, steps)
    assert steps.begun[1:3] == ["importance matrix", "iq4_nl: writing"]
    plain = tmp_path / "plain.gguf"
    requantise(options.source, str(plain), "iq4_nl", threads=1)
    assert Path(compiled.rows[1].path).read_bytes() != plain.read_bytes()
    assert names(tmp_path / "out") == {"tiny.iq4_nl.gguf", NAME}
    (tmp_path / "words").write_text("too short")
    begun = len(steps.begun)
    with pytest.raises(ImportanceError, match=r"words: too short, 1. tokens"):
        compile_model(options, steps)
    assert len(steps.begun) == begun, "nothing was measured in vain"


@pytest.mark.thorough
def test_the_default_model_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own; its speed in short, as nothing is said of it here."""
    brief = {SPEED: measuring.__name__}
    for name, value in constants({f"{SPEED}.{name}": value for name, value in BRIEF.items()}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(child, "ask", lambda module, *more: ASK(brief.get(module, module), *more))
    text = tmp_path / "text"
    text.write_text("The harbour lay quiet under the first snow. def f(x): return x + 1\n" * 4)
    options = Options(default_model_path(), tmp_path / "out", ("q8_0",), text=text, rounds=1, threads=1)
    compiled = compile_model(options, Steps())
    source, made = compiled.rows
    assert source.type == "source (q4_1)"
    assert all(0 < row.quality.kl < 0.02 and row.quality.top1 > 0.9 for row in (source, made))
    assert source.quality.perplexity == pytest.approx(compiled.exact.perplexity, rel=0.05)
    assert made.bytes > 1.3 * source.bytes
    assert names(tmp_path / "out") == {"SmolLM2-135M-Instruct.q8_0.gguf", NAME}


def test_a_file_that_was_changed_since_is_left_alone(models: Path, out: Path) -> None:
    (out / "tiny.q8_0.gguf").write_bytes(b"precious")
    with pytest.raises(CompileError, match=r"tiny\.q8_0\.gguf: was changed since it was made; move it"):
        compile_model(given(models, out), Steps())
    assert (out / "tiny.q8_0.gguf").read_bytes() == b"precious"


def test_an_own_folder_is_of_the_name_or_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    of_hub, of_path = own_folder("models/llama"), own_folder("./llama.gguf")
    monkeypatch.chdir(tmp_path / "models")
    assert own_folder("models/llama") == of_hub, "a hub's name is the same from everywhere"
    assert own_folder("../llama.gguf") == of_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llama").mkdir()
    assert own_folder("models/llama") != of_hub
    assert own_folder("models/llama") == own_folder(str(tmp_path / "models" / "llama"))


def test_the_record_is_json(out: Path) -> None:
    content = json.loads((out / NAME).read_text())
    assert set(content) == {"begun", "ended", "made", "quality", "speed"}
