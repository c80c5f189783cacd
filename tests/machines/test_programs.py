"""Programs of the hosts that cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.environments import CannotInstall, install


def test_an_environment_is_not_taken_for_whole_when_pip_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("./missing-1.0-py3-none-any.whl\n")
    for _ in range(2):
        with pytest.raises(CannotInstall, match="did not install"):
            install(tmp_path / "environment", requirements)
    assert "missing" in capfd.readouterr().err
