"""What Flower shows of a job's end, and what of it is logged."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tasks.records.job import result_line
from tasks.worker.flower_line import ANSWER_CHARS, WithoutAnswers, end_line


def result(text: str) -> dict[str, Any]:
    return {
        "text": text,
        "finish_reason": "stop",
        "usage": {"completion_tokens": 3},
        "timing": {"tokens_per_s": 1.5},
    }


def test_the_beginning_of_the_answer_is_shown() -> None:
    line = result_line(result(""))
    assert end_line(result("")) == line
    assert end_line(result(" \n")) == line
    assert end_line(result("One,\n\n two | three.")) == f"{line} | One, two | three."
    long = end_line(result("word " * 1000)).removeprefix(f"{line} | ")
    assert (len(long), long[-1]) == (ANSWER_CHARS, "…")


@pytest.mark.parametrize("text", ["secret", "a | secret", 'it\'s "secret"', "secret\n" * 100, ""])
def test_no_log_has_it(text: str) -> None:
    shown = repr(end_line(result(text)))
    args = {"name": "n", "id": "job_1", "return_value": shown, "runtime": 0.1}
    record = logging.LogRecord(
        "celery.app.trace", logging.INFO, "", 1, "%(id)s: %(return_value)s", (args,), None
    )
    assert WithoutAnswers().filter(record)
    quote = shown[0]
    assert record.getMessage() == f"job_1: {quote}{result_line(result(''))}{quote}"


def test_other_records_are_left_alone() -> None:
    record = logging.LogRecord("celery.app.trace", logging.INFO, "", 1, "%s | %s", ("a", "b"), None)
    assert WithoutAnswers().filter(record)
    assert record.getMessage() == "a | b"
