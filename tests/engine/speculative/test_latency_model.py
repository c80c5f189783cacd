"""T(n): the curve, how it follows the machine, and how it is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from engine.host import measurement_cache
from engine.speculative.latency_model import (
    BUDGET_S,
    TOLERANCE,
    LatencyProfile,
    RowTimer,
    measure,
    measure_once,
)


def timer(decode: Callable[[int], float]) -> RowTimer:
    """Without room for a longer context."""
    return RowTimer(decode, lambda _: 0.0, capacity=0)


def test_between_points_it_is_linear_and_beyond_it_goes_on() -> None:
    profile = LatencyProfile({1: 1.0, 3: 2.0, 4: 4.0})
    assert [profile.seconds(n) for n in (1, 2, 3, 4, 6)] == pytest.approx([1.0, 1.5, 2.0, 4.0, 8.0])
    assert LatencyProfile({2: 3.0}).seconds(9) == 3.0
    assert LatencyProfile({2: 3.0, 4: 5.0}).seconds(1) == 3.0


def test_beyond_the_last_point_it_rises_as_its_upper_half_did() -> None:
    """Of rows that kernels take by fours the last two points tell nothing."""
    by_fours = LatencyProfile({1: 1.0, 2: 1.2, 3: 1.5, 4: 1.5})
    assert by_fours.seconds(8) == pytest.approx(1.5 + 4 * 0.15)
    falling = LatencyProfile({8: 1.1, 16: 1.0})
    assert falling.seconds(100) == pytest.approx(1.0), "noise must not make rows free"


def test_noise_only_adds() -> None:
    """One size that was interrupted must not make larger ones seem free."""
    profile = LatencyProfile({1: 1.0, 4: 1.6, 5: 6.0, 8: 2.4, 16: 4.0})
    assert profile.seconds(5) == pytest.approx(TOLERANCE * 2.4)
    assert [profile.seconds(n) for n in (1, 4, 8, 16)] == [1.0, 1.6, 2.4, 4.0]
    by_fours = LatencyProfile({4: 2.66, 5: 3.76, 6: 4.14, 7: 4.59, 8: 2.66})
    assert [by_fours.seconds(n) for n in (5, 6, 7)] == [3.76, 4.14, 4.59], "so do some kernels"


def test_sizes_that_noise_hit_are_timed_again() -> None:
    calls: list[int] = []

    def decode(rows: int) -> float:
        calls.append(rows)
        return 0.01 * rows * (6 if rows == 5 and calls.count(5) <= 2 else 1)

    assert measure(timer(decode), (1, 2, 4, 5, 8, 16)).points[5] == pytest.approx(0.05)
    assert calls.count(5) > calls.count(4)


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}, {1: float("inf")}])
def test_points_that_cannot_be(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="at least 1 row and above 0 seconds"):
        LatencyProfile(points)


def test_a_slower_machine_moves_the_whole_curve() -> None:
    profile = LatencyProfile({1: 1.0, 2: 1.5, 3: 2.0})
    for _ in range(300):
        profile.observe(2, 2.25)
    assert profile.seconds(2) == pytest.approx(2.25, rel=0.01)
    assert profile.seconds(1) > 1.2, "sizes that were not seen follow"


def test_the_shape_is_learned_when_all_sizes_are_seen() -> None:
    profile, truth = LatencyProfile({1: 1.0, 2: 2.0, 4: 4.0}), {1: 1.0, 2: 1.3, 4: 1.9}
    for i in range(6000):
        rows = (1, 2, 4)[i % 3]
        profile.observe(rows, truth[rows])
    assert [profile.seconds(n) for n in truth] == pytest.approx(list(truth.values()), rel=0.05)


def test_an_interrupted_call_hardly_counts_and_a_lasting_change_gets_through() -> None:
    profile = LatencyProfile({1: 1.0})
    profile.observe(1, 100.0)
    assert profile.seconds(1) == pytest.approx(1.0, rel=0.02)
    for _ in range(1500):
        profile.observe(1, 100.0)
    assert profile.seconds(1) == pytest.approx(100.0, rel=0.1)


def test_measuring_is_not_misled_by_interrupts_and_keeps_to_its_budget() -> None:
    calls: list[int] = []

    def decode(rows: int) -> float:
        calls.append(rows)
        return 0.01 * rows if len(calls) % 5 else 7.0 * rows  # every fifth is interrupted

    profile = measure(timer(decode), (1, 2, 4, 8))
    assert profile.seconds(1) == pytest.approx(0.01)
    slow: list[int] = []
    measure(timer(lambda rows: (slow.append(rows), 0.1 * rows)[1]), (1, 2, 4, 8))
    once = 2 * 0.1 + 2 * 1.5  # warm-up, and each size twice
    assert once <= sum(0.1 * n for n in slow) <= once + BUDGET_S
    assert set(slow) == {1, 2, 4, 8}


def test_a_slow_model_is_timed_at_a_few_sizes() -> None:
    calls: list[int] = []
    profile = measure(timer(lambda rows: (calls.append(rows), 0.5 * rows)[1]))
    assert sorted(profile.points) == sorted(set(calls)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert profile.seconds(10) == pytest.approx(5.0)


def test_attention_is_measured_apart_and_makes_rows_dear_in_long_contexts() -> None:
    length = 32

    def extend(count: int) -> float:
        nonlocal length
        length += count
        return 0.01

    profile = measure(
        RowTimer(lambda n: 0.009 + 0.001 * n + 1e-5 * n * length, extend, capacity=1000), (1, 2, 4)
    )
    assert 32 < length < 1000
    assert profile.row_cell_s == pytest.approx(1e-5)
    short = profile.seconds(4) / profile.seconds(1)
    profile.context = 1000
    assert profile.seconds(1) == pytest.approx(0.02, rel=0.02)
    assert profile.seconds(4) / profile.seconds(1) > 1.7 * short
    assert profile.points[4] == pytest.approx(0.013 + 4e-5 * 32), "of a short context, as it was measured"


def test_a_longer_context_takes_no_more_cells_or_time_than_there_is() -> None:
    added: list[int] = []
    measure(RowTimer(lambda n: 0.01 * n, lambda n: (added.append(n), 0.01)[1], capacity=50), (1, 2))
    assert added == [32, 18]
    added.clear()
    measure(RowTimer(lambda n: 0.01 * n, lambda n: (added.append(n), 5.0)[1], capacity=500), (1, 2))
    assert added == [32]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "medusaq"


@pytest.mark.usefixtures("folder")
def test_a_change_of_size_is_measured_apart() -> None:
    last = 0

    def decode(rows: int) -> float:
        nonlocal last
        switched, last = rows != last, rows
        return 0.01 * rows + (0.003 if switched else 0.0)

    profile = measure_once("m", nullcontext(timer(decode)), (1, 2, 4))
    assert [profile.seconds(n) for n in (1, 2, 4)] == pytest.approx([0.01, 0.02, 0.04])
    assert profile.switch == pytest.approx(0.003)
    assert measure_once("m", nullcontext(timer(decode)), (1, 2, 4)).switch == profile.switch
    profile.observe(1, 0.013)
    assert profile.seconds(1) == pytest.approx(0.01), "what the change took is no slower machine"
    assert (profile.next_call(1), profile.next_call(2)) == pytest.approx((0.01, 0.023))


def test_a_device_that_records_a_graph_with_the_second_call_of_a_size() -> None:
    """As on CUDA: the second call after a change takes longest."""
    calls: list[int] = []

    def decode(rows: int) -> float:
        calls.append(rows)
        before = len(calls) - 1
        while before and calls[before - 1] == rows:
            before -= 1
        extra = (0.002, 0.003)[len(calls) - 1 - before] if len(calls) - before < 3 else 0.0
        return 0.001 + 0.0001 * rows + extra

    profile = measure(timer(decode), (1, 2, 4, 8))
    assert profile.points == pytest.approx({1: 0.0011, 2: 0.0012, 4: 0.0014, 8: 0.0018})
    assert (profile.switch, profile.settle_s) == (pytest.approx(0.002), pytest.approx(0.003))
    expected = []
    for rows in (4, 4, 4, 1, 4, 4):
        expected.append(profile.next_call(rows))
        profile.called(rows)
    assert expected == pytest.approx([0.0034, 0.0044, 0.0014, 0.0031, 0.0034, 0.0044])


def test_a_profile_is_measured_once_for_each_key(folder: Path) -> None:
    calls: list[int] = []

    def decode(rows: int) -> float:
        calls.append(rows)
        return 0.001 * rows

    first = measure_once("model a", nullcontext(timer(decode)), (1, 2))
    done = len(calls)
    assert measure_once("model a", nullcontext(timer(decode)), (1, 2)).points == first.points
    assert len(calls) == done
    measure_once("model b", nullcontext(timer(decode)), (1, 2))
    assert len(calls) > done
    measure_once("model a", nullcontext(timer(decode)), (1, 2, 4))
    assert sorted(p.name for p in folder.iterdir() if p.suffix != ".json") == []
    assert len(list(folder.iterdir())) == 2, "other sizes replace what was kept"


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", {"measured": "x"}, {"seconds": {"1": "x"}}, {"seconds": {"1": -1, "2": 1}}]
)
def test_a_damaged_cache_is_measured_again(
    folder: Path, damage: str | dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    measure_once("m", nullcontext(timer(lambda n: 0.001 * n)), (1, 2))
    [path] = folder.iterdir()
    kept = json.loads(path.read_text())
    path.write_text(damage if isinstance(damage, str) else json.dumps(kept | damage))
    with caplog.at_level(logging.WARNING):
        assert measure_once("m", nullcontext(timer(lambda n: 0.002 * n)), (1, 2)).seconds(1) == pytest.approx(
            0.002
        )
    assert "measured again" in caplog.text
    assert json.loads(path.read_text())["seconds"]["1"] == pytest.approx(0.002)


def test_times_that_were_measured_in_another_way_are_measured_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measure_once("m", nullcontext(timer(lambda n: 0.001 * n)), (1, 2))
    [path] = folder.iterdir()
    before = json.loads(path.read_text())
    del before["format"]
    path.write_text(json.dumps(before))
    again = measure_once("m", nullcontext(timer(lambda n: 0.002 * n)), (1, 2))
    assert again.seconds(1) == pytest.approx(0.002)
    assert not caplog.text, "nothing is damaged"


def test_a_cache_that_cannot_be_written_is_said_and_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    with caplog.at_level(logging.WARNING):
        assert measure_once("m", nullcontext(timer(lambda n: 0.001 * n)), (1, 2)).seconds(2) == pytest.approx(
            0.002
        )
    assert "cannot be kept" in caplog.text


def test_without_a_setting_the_cache_is_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert measurement_cache.cache_folder() == tmp_path / ".cache" / "medusaq"
    assert "cores" in measurement_cache.machine()
