"""What `make release` makes of an interpreter or a command that fails, without installing anything."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release import __main__ as release
from tests.release import environments
from tests.release.environments import Environment
from tests.support.measuring.sigterm import STOPPED
from tests.support.medusaq_up import Failed
from tests.support.servers import free_port
from tests.support.workers import ROOT, is_alive, wait_until

WAIT_S = 20.0
CLEANS_UP = """
import sys, tempfile, time
from tests.support.measuring.sigterm import clean_up_on_sigterm
clean_up_on_sigterm()
with tempfile.TemporaryDirectory(dir=sys.argv[1]):
    print("begun", flush=True)
    time.sleep(60)
"""


def test_a_command_that_takes_too_long_ends_with_what_it_started(tmp_path: Path) -> None:
    environment = Environment(tmp_path, tmp_path / "cache")
    slow = ["sh", "-c", "sleep 60 & echo child $!; wait"]
    with pytest.raises(Failed, match=r"sh -c .*: not done after 5 s\n    child \d+") as failed:
        environment.run(slow, timeout_s=5.0)
    child = int(str(failed.value).rpartition(" ")[2])
    wait_until(lambda: not is_alive(child), WAIT_S)


def test_an_interpreter_that_is_gone_is_a_row_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = release.Python(tmp_path / "gone", "3.12.1")
    [row] = release._on(gone, [release.BASE], tmp_path / "no.whl", "1.0", tmp_path)
    assert row == ("3.12.1", "base", "-", "-", "-", release.FAILED)
    assert "gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pythons", "said"),
    [(["no-such-python"], "no-such-python: does not run"), ([sys.executable] * 2, "have the same version")],
)
def test_interpreters_that_cannot_be_tried_are_refused_at_once(
    pythons: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.release", "--python", *pythons])
    with pytest.raises(SystemExit):
        release._arguments()
    assert said in capsys.readouterr().err


def test_a_flower_that_does_not_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FLOWER_TIMEOUT_S", 0.2)
    with pytest.raises(Failed, match="Flower does not answer"):
        environments._wait_for_flower(free_port())


def test_sigterm_takes_away_what_was_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLEANS_UP, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        assert [*tmp_path.iterdir()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == STOPPED
    assert [*tmp_path.iterdir()] == []
