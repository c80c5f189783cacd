"""The same weights in another number format."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import llama_cpp
import numpy as np
import psutil
import pytest
from gguf import GGUFReader, dequantize

from engine.base.errors import ModelLoadError
from engine.llama.model import Model, default_model_path
from engine.medusa.model_rows import ModelRows
from engine.weights.formats import FORMATS
from engine.weights.quantise import call_llama, quantised_size, requantise, unfit_tensors
from tests.engine.helpers.tiny import LAYERS, write_tiny_gguf

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]
WIDE = 256  # the block of the K-quants, so that every format fits


@pytest.fixture(scope="module")
def wide_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    return write_tiny_gguf(path, width=WIDE, feed_forward=2 * WIDE)


def even_importance(path: str) -> dict[str, np.ndarray]:
    """Every column of every matrix matters the same."""
    tensors = [t for t in GGUFReader(path).tensors if len(t.shape) > 1]
    return {t.name: np.ones(int(t.shape[0]) * int(np.prod(t.shape[2:])), np.float32) for t in tensors}


@pytest.mark.parametrize(
    ("format", "error"),
    [("f32", 1e-9), ("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 2e-2), ("q5_1", 0.1), ("q4_0", 0.3)],
)
def test_weights_stay_what_they_were(tiny_gguf: str, tmp_path: Path, format: str, error: float) -> None:
    target = str(tmp_path / "made.gguf")
    requantise(tiny_gguf, target, format, threads=1)
    before, after = ModelRows(tiny_gguf).lm_head(), ModelRows(target).lm_head()
    assert np.abs(before - after).max() < error * np.abs(before).max()
    assert Model(target).vocab_size == Model(tiny_gguf).vocab_size
    assert Path(target).stat().st_size == quantised_size(tiny_gguf, format)


@pytest.mark.parametrize(
    ("format", "type", "error"),
    [
        ("q6_k", "Q6_K", 0.02),
        ("q5_k_m", "Q5_K", 0.05),
        ("q4_k_m", "Q4_K", 0.1),
        ("iq4_nl", "IQ4_NL", 0.1),
        ("iq4_xs", "IQ4_XS", 0.1),
        ("q3_k_m", "Q3_K", 0.2),
        ("q2_k_s", "Q2_K", 0.4),
        ("q2_k", "Q2_K", 0.4),
    ],
)
def test_a_format_is_what_its_name_says(
    wide_gguf: str, tmp_path: Path, format: str, type: str, error: float
) -> None:
    """error: of a matrix, its root mean square over that of the matrix."""
    target = tmp_path / "made.gguf"
    matrix = even_importance(wide_gguf) if FORMATS[format].needs_importance else None
    requantise(wide_gguf, str(target), format, threads=1, importance=matrix)
    before, after = ({t.name: t for t in GGUFReader(p).tensors} for p in (wide_gguf, target))
    assert type in {t.tensor_type.name for t in after.values()}
    name = "blk.1.ffn_up.weight"
    exact = before[name].data
    found = dequantize(after[name].data, after[name].tensor_type)
    assert np.sqrt(np.mean((exact - found) ** 2) / np.mean(exact**2)) < error
    assert target.stat().st_size == quantised_size(wide_gguf, format)
    assert Model(str(target)).vocab_size == Model(wide_gguf).vocab_size


@pytest.mark.parametrize("format", FORMATS)
def test_the_table_of_formats_is_that_of_llama_cpp(wide_gguf: str, tiny_gguf: str, format: str) -> None:
    known = FORMATS[format]
    kind = "ALL" if format == "f32" else "MOSTLY"
    assert known.number == getattr(llama_cpp, f"LLAMA_FTYPE_{kind}_{format.upper()}")
    said: list[str] = []
    assert call_llama(wide_gguf, "", format, log=lambda _, text: said.append(text), dry_run=True) == 0
    assert ("will require an imatrix" in "".join(said)) == known.needs_importance
    assert unfit_tensors(wide_gguf, format) == []
    assert bool(unfit_tensors(tiny_gguf, format)) == (known.block == 256)


def test_the_bindings_hand_over_the_parameters_of_this_llama_cpp() -> None:
    """Were a field missing, the last one would hold something else."""
    params = llama_cpp.llama_model_quantize_default_params()
    assert (params.ftype, params.quantize_output_tensor) == (FORMATS["q8_0"].number, True)
    assert not any((params.imatrix, params.kv_overrides, params.tt_overrides, params.prune_layers))
    assert params.max_buf_size == 8 << 30


def test_a_quantised_model_can_be_quantised_again(tiny_gguf: str, tmp_path: Path) -> None:
    requantise(tiny_gguf, str(tmp_path / "a.gguf"), "q4_0", threads=1)
    requantise(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), "bf16", threads=1)
    first, second = (ModelRows(str(tmp_path / name)).lm_head() for name in ("a.gguf", "b.gguf"))
    np.testing.assert_allclose(first, second, rtol=1e-2)


def test_the_size_of_the_default_model_in_another_format(tmp_path: Path) -> None:
    target = tmp_path / "made.gguf"
    requantise(default_model_path(), str(target), "q8_0")
    assert target.stat().st_size == quantised_size(default_model_path(), "q8_0")


def test_a_model_in_several_files_becomes_one(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "split.gguf", split_tensors=6)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 2
    target = tmp_path / "made.gguf"
    requantise(str(parts[0]), str(target), "q8_0", threads=1)
    assert len(GGUFReader(target).tensors) == 3 + 9 * LAYERS
    # Each part says again what kind of file it is.
    assert 0 <= quantised_size(str(parts[0]), "q8_0") - target.stat().st_size < 500 * len(parts)
    parts[1].unlink()
    with pytest.raises(
        ModelLoadError, match=r"split-00001-of-0000\d\.gguf: llama.cpp cannot write it as q8_0: "
    ):
        requantise(str(parts[0]), str(target), "q8_0", threads=1)


def test_progress_counts_every_tensor(tiny_gguf: str, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    requantise(tiny_gguf, str(tmp_path / "made.gguf"), "q8_0", progress=lambda *done: told.append(done))
    count = len(GGUFReader(tiny_gguf).tensors)
    assert told == [(n, count) for n in range(1, count + 1)]


# An importance matrix


def test_columns_that_matter_are_kept_nearer(wide_gguf: str, tmp_path: Path) -> None:
    name, columns = "blk.0.ffn_up.weight", np.ones(WIDE, np.float32)
    columns[::16] = 10_000
    matrix = {**even_importance(wide_gguf), name: columns}
    errors = []
    for importance in (None, matrix):
        target = tmp_path / "made.gguf"
        requantise(wide_gguf, str(target), "q3_k_s", threads=1, importance=importance)
        [exact], [made] = ([t for t in GGUFReader(p).tensors if t.name == name] for p in (wide_gguf, target))
        off = exact.data - dequantize(made.data, made.tensor_type)
        errors.append(float((off**2 * columns).sum()))
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("format", [name for name, known in FORMATS.items() if known.needs_importance])
def test_formats_that_need_a_matrix_say_so(wide_gguf: str, tmp_path: Path, format: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"wide\.gguf: {format} needs an importance matrix"):
        requantise(wide_gguf, str(tmp_path / "made.gguf"), format)
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_of_another_model_is_refused(wide_gguf: str, tiny_gguf: str, tmp_path: Path) -> None:
    target, whole = str(tmp_path / "made.gguf"), even_importance(wide_gguf)
    needed = "blk.0.ffn_up.weight"
    refused = {
        r"output\.weight \[320 x 256\] takes 256 finite numbers of at least 0, and it has 64$": (
            even_importance(tiny_gguf)
        ),
        r"it knows no tensor of it$": {"other.weight": np.ones(4, np.float32)},
        r"blk\.0\.ffn_up\.weight .* takes 256 finite": {**whole, needed: whole[needed] * np.nan},
        r"needs the importance of blk\.0\.ffn_up\.weight \[512 x 256\], which the matrix lacks$": {
            name: values for name, values in whole.items() if name != needed
        },
    }
    for message, matrix in refused.items():
        with pytest.raises(ModelLoadError, match=message):
            requantise(wide_gguf, target, "iq2_xs", importance=matrix)
    assert list(tmp_path.iterdir()) == []


# What goes wrong


def test_a_format_that_the_shapes_forbid_is_refused(tmp_path: Path) -> None:
    """llama.cpp would take another for most of the default model's tensors, whose width is 576."""
    path, target = default_model_path(), tmp_path / "made.gguf"
    with pytest.raises(ModelLoadError) as refused:
        requantise(path, str(target), "q4_k_m")
    assert refused.value.message == (
        f"{path}: cannot be written as q4_k_m, which packs 256 weights of a row together: they do not divide "
        "the rows of token_embd.weight [49152 x 576], and of 181 of 272 tensors; formats that fit: "
        "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
    )
    assert not target.exists()
    misfits = {tensor.name for tensor in unfit_tensors(path, "q4_k_m")}
    assert "blk.3.attn_q.weight" in misfits
    assert "blk.3.ffn_down.weight" not in misfits  # its rows are 1,536 long
    assert unfit_tensors(path, "q4_0") == unfit_tensors(path, "iq4_nl") == unfit_tensors(path, "f16") == []


def test_what_is_wrong_is_named_and_nothing_is_left(tiny_gguf: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        requantise(str(tmp_path / "none.gguf"), str(tmp_path / "made.gguf"), "f16")
    with pytest.raises(ModelLoadError, match="no number format q9: known are f32, f16, "):
        requantise(tiny_gguf, str(tmp_path / "made.gguf"), "q9")
    with pytest.raises(ModelLoadError, match="cannot be written: No such file"):
        requantise(tiny_gguf, str(tmp_path / "none" / "made.gguf"), "f16")
    (tmp_path / "damaged.gguf").write_bytes(Path(tiny_gguf).read_bytes()[:5000])
    for format in ("f16", "q8_0"):
        with pytest.raises(
            ModelLoadError, match=rf"damaged\.gguf: llama.cpp cannot write it as {format}: \w"
        ):
            requantise(str(tmp_path / "damaged.gguf"), str(tmp_path / "made.gguf"), format)
    with pytest.raises(ModelLoadError, match=r"damaged\.gguf: llama.cpp cannot write it as q8_0: \w"):
        quantised_size(str(tmp_path / "damaged.gguf"), "q8_0")
    assert [p.name for p in tmp_path.iterdir()] == ["damaged.gguf"]


QUANTISE = """
import os, resource, signal, sys
from engine.base.errors import ModelLoadError
from engine.weights.quantise import requantise
source, target, then = sys.argv[1:]
def stop(done, count):
    if then != "none" and done == 3:
        os.kill(os.getpid(), int(then))
if then == "none":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    requantise(source, target, "f16", progress=stop)
except ModelLoadError as error:
    sys.exit(error.message)
"""


def quantise_elsewhere(source: str, target: Path, then: str) -> subprocess.CompletedProcess[str]:
    """In another process, which gets a signal when three tensors are done, or may write no large file."""
    command = [sys.executable, "-c", QUANTISE, source, str(target), then]
    return subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_full_disk_is_named(wide_gguf: str, tmp_path: Path) -> None:
    done = quantise_elsewhere(wide_gguf, tmp_path / "made.gguf", "none")
    assert "made.gguf: cannot be written: is the disk full?" in done.stderr
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tiny_gguf: str, tmp_path: Path) -> None:
    done = quantise_elsewhere(tiny_gguf, tmp_path / "made.gguf", str(int(signal.SIGINT)))
    assert "KeyboardInterrupt" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tiny_gguf: str, tmp_path: Path) -> None:
    target = tmp_path / "made.gguf"
    assert quantise_elsewhere(tiny_gguf, target, str(int(signal.SIGKILL))).returncode == -signal.SIGKILL
    assert [p.suffix for p in tmp_path.iterdir()] == [".part"]
    requantise(tiny_gguf, str(target), "f16")
    assert list(tmp_path.iterdir()) == [target]


def test_a_process_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the system runs out of memory. A child, since it is found among these."""
    monkeypatch.setattr("engine.weights.quantise.subprocess", subprocess)

    def kill(done: int, _count: int) -> None:
        if done == 1:
            children = psutil.Process().children()
            [child] = [child for child in children if "engine.weights.quantise_child" in child.cmdline()]
            child.kill()

    with pytest.raises(ModelLoadError, match=r"cannot write it as q4_0: its process ended with -9: \["):
        requantise(default_model_path(), str(tmp_path / "made.gguf"), "q4_0", progress=kill)
    assert list(tmp_path.iterdir()) == []


def test_the_part_of_a_living_process_stays(tiny_gguf: str, tmp_path: Path) -> None:
    """Two quantise to the same target at once: each has its own part, and the last one stays."""
    target = tmp_path / "made.gguf"

    def again(done: int, _count: int) -> None:
        if done == 1:
            requantise(tiny_gguf, str(target), "q8_0", threads=1)

    requantise(tiny_gguf, str(target), "f16", threads=1, progress=again)
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_size == quantised_size(tiny_gguf, "f16")
