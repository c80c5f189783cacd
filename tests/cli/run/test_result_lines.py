"""Lines of the results file, and how they are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.prompts.prompt_reader import PromptLine
from cli.run import result_lines
from cli.run.occupancy import WorkerOccupancy
from cli.run.summary import Outcome, SessionSummary
from cli.run.totals import Totals
from cli.views.progress import Speed, duration
from tasks.schema.job_request import Problem

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3},
}
CHOICE = {"message": {"content": "Yes."}, "finish_reason": "stop"}
SPECULATION = {"steps": 1, "tokens_per_step": 2.0, "sources": {}}


def answered(**body: Any) -> dict[str, Any]:
    """An entry of a batch's output file."""
    response = {
        "status_code": 200,
        "request_id": "job_1f-3",
        "body": {"usage": USAGE, "choices": [CHOICE], **body},
    }
    return {"id": "batch_req_1f-3", "custom_id": "mine", "response": response, "error": None}


def refused(code: str | None = "model_not_found") -> dict[str, Any]:
    error = {"code": code, "message": "m", "param": "model", "type": "invalid_request_error"}
    response = {"status_code": 400, "request_id": "job_1f-3", "body": {"error": error}}
    return {**answered(), "response": response}


def failed() -> dict[str, Any]:
    error = {"code": "worker_lost", "message": "m", "param": None, "line": 3, "partial": "so f"}
    return {**answered(), "response": None, "error": error}


def test_an_entry_is_placed_in_the_input() -> None:
    assert result_lines.placed(answered(), 4, 9, "mine") == {**answered(), "id": "batch_req_5"}
    assert result_lines.placed(refused(), 4, 9, "mine") == {**refused(), "id": "batch_req_5"}
    placed = result_lines.placed({**failed(), "custom_id": None}, 4, 9, "mine")
    assert placed == {
        "id": "batch_req_5",
        "custom_id": "mine",
        "response": None,
        "error": {"code": "worker_lost", "message": "m", "param": None, "line": 9, "partial": "so f"},
    }


def test_why_a_line_failed() -> None:
    codes = [result_lines.error_code(line) for line in (answered(), failed(), refused(), refused(None))]
    assert codes == [None, "worker_lost", "model_not_found", "http_400"]


def test_an_invalid_line_names_its_number_and_all_its_problems() -> None:
    bad = PromptLine(0, 7, None, {}, (Problem("must be x", "a.b"), Problem("odd", code="other")))
    assert result_lines.invalid(bad) == {
        "id": "batch_req_1",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_value", "message": "a.b: must be x; odd", "param": "a.b", "line": 7},
    }


def test_half_a_pair_quoted_from_a_bad_line_can_be_written() -> None:
    assert result_lines.dump({"é": "\ud800"}) == '{"é":"?"}\n'.encode()


def test_the_tally_counts_each_line_once() -> None:
    tally = Totals()
    assert tally.tokens_per_step is None
    cut = [{**CHOICE, "finish_reason": "length"}]
    lines = (answered(speculation=SPECULATION), answered(speculation=None, choices=cut), refused("c"))
    for line in lines:
        tally.add(line)
    assert (tally.requests, tally.failed, dict(tally.failures)) == (3, 1, {"c": 1})
    assert tally.cut == 1
    assert (tally.prompt_tokens, tally.cached_tokens, tally.generated_tokens) == (10, 6, 4)
    assert tally.tokens_per_step == 2.0


def test_the_beginnings_of_answers_pass_over_failures(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    choices = [
        {"message": {"content": "One,\n\n two."}},
        {"text": "x" * 200},
        {"message": {"content": None}},
        {"text": "the fourth"},
    ]
    lines = [refused(), failed(), *(answered(choices=[choice]) for choice in choices)]
    path.write_bytes(b"".join(map(result_lines.dump, lines)))
    assert list(result_lines.beginnings(path, 3)) == ["mine: One, two.", f"mine: {'x' * 160} ...", "mine: "]
    assert len(list(result_lines.beginnings(path, 9))) == 4


def test_what_was_cancelled_has_not_failed() -> None:
    tally = Totals()
    for line in (answered(), refused("c"), refused("batch_cancelled"), refused("batch_cancelled")):
        tally.add(line)
    assert (tally.failed, tally.unanswered) == (1, 3)
    rows = Outcome(Path("r.jsonl"), tally, SessionSummary(4, 4, 1.0, None, None)).text().splitlines()
    assert rows[:3] == ["requests          4", "failures          1 (c 1)", "cancelled         2"]


@pytest.mark.parametrize(
    ("starting_s", "wall_time"),
    [(None, "3.7 s"), (89.0, "1 min 33 s (starting 1 min 29 s, answering 3.7 s)")],
)
def test_the_wall_time_names_what_starting_took(starting_s: float | None, wall_time: str) -> None:
    session = SessionSummary(2, 10, 3.7, None, starting_s)
    lines = Outcome(Path("r.jsonl"), Totals(requests=2), session).text().splitlines()
    assert f"wall time         {wall_time}" in lines
    assert "tokens/s          2.7" in lines, "of the time of answering"


def model(*workers: tuple[str, float, float]) -> list[dict[str, Any]]:
    details = [
        {"id": name, "metrics": {"steps_total": steps, "batch_occupancy": mean}}
        for name, steps, mean in workers
    ]
    return [{"id": "m", "slots": 4 * len(workers), "workers_detail": details}]


def test_occupancy_is_that_of_the_steps_during_the_run() -> None:
    fleet = WorkerOccupancy()
    fleet.begin(model(("a", 100, 0.1)))
    assert (fleet.slots, fleet.occupancy()) == (4, None)
    fleet.update(model(("a", 200, 0.5)))  # 100 steps at 0.9
    assert fleet.occupancy() == pytest.approx(0.9)
    fleet.update(model(("b", 100, 0.3)))  # a has left, b came later: both count
    assert fleet.occupancy() == pytest.approx(0.6)


def test_a_fleet_without_workers_knows_nothing() -> None:
    fleet = WorkerOccupancy()
    fleet.begin([])
    assert (fleet.slots, fleet.occupancy()) == (0, None)


def test_speed_is_that_of_the_last_half_minute() -> None:
    speed = Speed(0.0)
    assert speed.per_second() == 0.0
    for second in range(1, 101):
        speed.note(float(second), tokens=max(0, second - 50) * 10)
    assert speed.per_second() == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12, "12 s"), (72.4, "1 min 12 s"), (11_100, "3 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
