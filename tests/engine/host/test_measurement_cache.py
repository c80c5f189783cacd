"""How long a measurement is kept, and what tells that others used the processor meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.processor import usable_cores
from engine.host.measurement_cache import (
    BUSY,
    BUSY_KEPT_S,
    KEPT_S,
    cache_folder,
    cache_path,
    read_entry,
    read_measurement,
    write_entry,
    write_measurement,
)
from engine.host.other_load import OtherLoad, Used, core_seconds, share

KIND, KEY = "times", "of a machine"
TICKS_A_S = os.sysconf("SC_CLK_TCK")
BURN = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _age(seconds: float) -> None:
    """Make the kept measurement older."""
    path = cache_path(KIND, KEY, ".json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"measured": kept["measured"] - seconds}))


@pytest.mark.parametrize(("others", "kept_s"), [(BUSY / 2, KEPT_S), (BUSY * 2, BUSY_KEPT_S)])
def test_a_measurement_is_kept_for_days_and_one_beside_other_load_for_an_hour(
    others: float, kept_s: float
) -> None:
    write_measurement(KIND, KEY, {"value": 7}, others)
    _age(kept_s - 60)
    assert read_measurement(KIND, KEY)["value"] == 7
    _age(120)
    assert read_measurement(KIND, KEY) is None
    write_measurement(KIND, KEY, {"value": 8})
    assert read_measurement(KIND, KEY)["value"] == 8, "the new one takes its place"


def test_what_was_measured_in_the_future_is_measured_again() -> None:
    """The clock was set back, so that nobody knows its age."""
    write_measurement(KIND, KEY, {"value": 7})
    _age(-3600)
    assert read_measurement(KIND, KEY) is None


def test_what_earlier_versions_kept_is_measured_again(caplog: pytest.LogCaptureFixture) -> None:
    write_entry(KIND, KEY, {"value": 7})
    assert read_measurement(KIND, KEY) is None
    assert not caplog.text, "nothing is damaged"


def test_a_choice_is_kept_for_ever() -> None:
    write_entry(KIND, KEY, {"value": 7})
    assert read_entry(KIND, KEY)["value"] == 7
    assert len(list(cache_folder().iterdir())) == 1


STAT = """\
cpu  900 900 900 900 900 900 900 900 0 0
cpu0 100 10 20 5000 300 3 4 7 50 0
cpu1 1000 0 0 0 0 0 0 0 0 0
cpu10 9000 0 0 0 0 0 0 0 0 0
intr 12345
"""


def test_the_used_seconds_are_those_of_our_cores_without_idle_ones_and_with_stolen_ones() -> None:
    assert core_seconds(STAT, {0}) == pytest.approx(144 / TICKS_A_S)
    assert core_seconds(STAT, {0, 1}) == pytest.approx(1144 / TICKS_A_S)
    assert core_seconds("", {0}) == 0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell")
def test_other_processes_are_seen() -> None:
    cores = usable_cores()
    burning = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(cores)]
    try:
        time.sleep(0.5)
        load = OtherLoad()
        time.sleep(1)
        others = load.share()
    finally:
        for process in burning:
            process.kill()
            process.wait()
    assert BUSY < others <= 1


def test_what_this_process_used_is_no_load_of_others() -> None:
    before = Used(passed=100.0, by_all=50.0, own=20.0)
    assert share(before, Used(110.0, 59.0, 28.0)) == pytest.approx(0.1)
    assert share(before, Used(110.0, 57.9, 28.0)) == 0.0, "the clocks differ by a tick"
    assert share(before, before) == 0.0
