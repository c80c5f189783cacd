"""Columns expected_NAME are compared with what was answered."""

from __future__ import annotations

from tables.answers.expected_answers import ExpectedAnswers


def test_a_row_is_right_where_all_its_columns_are() -> None:
    expected = ExpectedAnswers(["text", "expected_mood", "expected_stars"], ["mood", "stars"])
    expected.compare(["a", "good", "3"], ["good", 3])
    expected.compare(["b", "good", 3], ["bad", 3])
    expected.compare(["c", "bad", ""], ["bad", 5])
    expected.compare(["d", None, None], ["bad", 5])
    expected.compare(["e", "good", "1"], [None, None])
    assert expected.text() == "2 of 4 rows (mood 2, stars 2)"


def test_one_column_is_not_named_and_none_is_nothing() -> None:
    one = ExpectedAnswers(["expected_answer", "text"], ["answer"])
    one.compare(["yes", "a"], ["yes"])
    assert one.text() == "1 of 1 rows"
    none = ExpectedAnswers(["expected_other", "text"], ["answer"])
    none.compare(["yes", "a"], ["yes"])
    assert none.text() == ""
