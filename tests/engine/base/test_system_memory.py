"""What memory is free: the machine's, or less in a container."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from engine.host import system_memory
from engine.host.system_memory import look_at_memory

MB = 1024 * 1024


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files in which Linux tells of a container."""
    monkeypatch.setattr(system_memory, "CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text(f"{90 * MB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {20 * MB}\nactive_file {10 * MB}\n")
    return tmp_path


def test_a_container_has_what_it_is_allowed_less_what_it_cannot_give_back(container: Path) -> None:
    (container / "memory.max").write_text(f"{100 * MB}\n")
    seen = look_at_memory()
    assert (seen.whole, seen.available) == (100 * MB, 40 * MB)
    (container / "memory.max").write_text(f"{50 * MB}\n")
    assert look_at_memory().available == 0


def test_without_a_limit_it_is_the_machines(container: Path) -> None:
    (container / "memory.max").write_text("max\n")
    assert look_at_memory().whole == psutil.virtual_memory().total
    (container / "memory.max").unlink()
    assert 0 < look_at_memory().available <= psutil.virtual_memory().total
