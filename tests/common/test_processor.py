"""The processor is told by what decides how fast it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import processor

ONE_CORE = """\
processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: Virtual: one of many
flags\t\t: fpu avx2 avx512f{more}

"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", path)
    return path


@pytest.mark.parametrize(("more", "widest"), [("", "AVX-512"), (" avx512_bf16 avx512_vnni", "AVX-512 BF16")])
def test_processors_of_one_name_are_told_apart(cpuinfo: Path, more: str, widest: str) -> None:
    cpuinfo.write_text(ONE_CORE.format(more=more) * 2)
    assert processor.processor() == f"Virtual: one of many ({widest}), family 25 model 17"
    assert processor.flags() == {"fpu", "avx2", "avx512f", *more.split()}


def test_a_program_that_was_compiled_for_less_is_told(cpuinfo: Path) -> None:
    cpuinfo.write_text(ONE_CORE.format(more=" avx512_bf16"))
    assert processor.processor({"avx2", "avx_vnni"}) == (
        "Virtual: one of many (AVX-512 BF16, compiled for AVX2), family 25 model 17"
    )
    assert processor.processor({"avx2", "avx512_bf16"}) == processor.processor()
    assert "(AVX-512 BF16, compiled for none)" in processor.processor(set())


@pytest.mark.parametrize("told", [None, "", "processor\t: 0\nBogoMIPS\t: 50.00\n"])
def test_a_system_that_tells_less_names_its_architecture(cpuinfo: Path, told: str | None) -> None:
    if told is not None:
        cpuinfo.write_text(told)
    assert processor.processor()
    assert "family" not in processor.processor()
    assert processor.flags() == frozenset()
