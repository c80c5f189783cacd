"""The command ends with one error where the clients cannot be installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients import __main__ as clients
from tests.support import environments


@pytest.mark.slow
def test_packages_that_cannot_be_installed_are_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("./missing-1.0-py3-none-any.whl\n")
    monkeypatch.setattr(clients, "REQUIREMENTS", requirements)
    monkeypatch.setattr(clients, "ENVIRONMENT", tmp_path / "environment")
    monkeypatch.setattr(sys, "argv", ["tests.clients", "--only", "openai_sdk"])
    assert clients.main() == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error == f"error: pip did not install the packages of {requirements}"


def test_an_environment_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("")
    file = tmp_path / "environment"
    file.write_text("")
    with pytest.raises(environments.CannotInstall, match="environment cannot be made: "):
        environments.install(file, requirements)
