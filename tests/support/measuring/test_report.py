"""What benchmarks tell is printed as it is measured, and recorded once it is whole."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.processor import usable_cores
from docs.measured.figures import read
from tests.support.measuring.report import Report, measured_on, shown_command, spread
from tests.support.measuring.revision import commit


def test_a_table_is_recorded_with_its_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("python -m x", tmp_path / "figures.json", "model.gguf")
    with report.table("speed", "system", "tokens/s") as table:
        table.row("ours", spread([3.0, 1.0, 2.0]))
        assert capsys.readouterr().out.splitlines()[-1].split("  ")[0] == "ours", (
            "before the next is measured"
        )
        table.note("Three runs.")
        table.data["runs"] = [1.0, 2.0]
    [found] = read(tmp_path / "figures.json")
    assert (found.columns, found.rows) == (["system", "tokens/s"], [["ours", "2.0 (1.0 to 3.0)"]])
    assert (found.notes, found.data, found.model) == (["Three runs."], {"runs": [1.0, 2.0]}, "model.gguf")
    assert (found.command, found.processor, found.cores) == ("python -m x", measured_on(), usable_cores())
    assert found.commit == commit()


def test_what_broke_off_or_is_not_to_be_kept_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"

    def breaks_off() -> None:
        with Report("python -m x", path).table("speed", "system") as table:
            table.row("ours")
            raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        breaks_off()
    with Report("python -m x", path).table("speed", "system", keep=False) as table:
        table.row("ours")
    with Report("python -m x").table("speed", "system") as table:
        table.row("ours")
    assert not path.exists()


@pytest.mark.parametrize(
    ("features", "compiled"),
    [
        ("AVX2 = 1 | AVX512 = 1 | AVX512_BF16 = 1", ", compiled for AVX-512 BF16"),
        ("AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 1", ""),
        ("AVX2 = 1 | AVX512 = 1", ", compiled for AVX-512"),
        ("AVX2 = 1 | FMA = 1", ", compiled for AVX2"),
    ],
)
def test_a_llama_cpp_for_older_processors_is_told(
    features: str, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name: Virtual\nflags: avx2 avx512f avx512_bf16 amx_bf16\n")
    monkeypatch.setattr("common.processor.CPUINFO", cpuinfo)
    monkeypatch.setattr("llama_cpp.llama_print_system_info", features.encode)
    assert measured_on() == f"Virtual (AMX{compiled})"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--record", "--limit", "2"], "--only a --limit 2"),
        (["--limit", "2", "--record", "/tmp/f.json"], "--only a --limit 2"),
        (["--record=/tmp/f.json", "--only", "a", "b", "--pairs", "1"], "--only a --pairs 1"),
        (["--server", "/home/me/bin/llama-server"], "--only a --server PATH/llama-server"),
    ],
)
def test_a_command_is_shown_without_what_is_of_one_machine(given: list[str], shown: str) -> None:
    assert shown_command("m", given, only="a") == f"python -m m {shown}"


def test_the_commit_is_dirty_by_code_alone(tmp_path: Path) -> None:
    """Benchmarks write figures and pictures while others of the same run are still to come."""
    assert commit(tmp_path) == ""
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false")
    (tmp_path / "code.py").touch()
    (tmp_path / "page.md").touch()
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout
    (tmp_path / "page.md").write_text("figures")
    assert head.startswith(commit(tmp_path))
    assert len(commit(tmp_path)) >= 7
    new = tmp_path / "new.py"
    new.touch()
    assert commit(tmp_path).endswith("-dirty")
    new.unlink()
    assert not commit(tmp_path).endswith("-dirty")
    (tmp_path / "code.py").write_text("changed")
    assert commit(tmp_path).endswith("-dirty")
