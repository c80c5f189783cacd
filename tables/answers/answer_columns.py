"""The columns that follow the original ones: the answer, why it ended, its error, and its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tables.answers.schema import AnswerSchema
from tables.base.table import TEXT_TYPE

ANSWER = "answer"
LENGTH = "length"  # the finish reason of an answer that was cut off
EXTRAS = ("logprobs", "token_ids")  # of the tokens of the answer, as JSON
INTEGERS = range(-(2**63), 2**63)  # what a BIGINT holds


@dataclass(frozen=True, slots=True)
class Answer:
    """text: None if there is none. error: one line, or None. extras: some of EXTRAS."""

    text: str | None
    finish_reason: str | None
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)


class AnswerColumns:
    """names: of the added columns. A name that the table has already gets a suffix, such as answer_2.

    extras: those of EXTRAS that were asked for.
    """

    def __init__(
        self,
        original: Sequence[str],
        schema: AnswerSchema | None = None,
        *,
        usage: bool = False,
        extras: Sequence[str] = (),
    ) -> None:
        self._fields = None if schema is None else dict(schema.types)
        self._usage, self._extras = usage, extras
        wanted = {ANSWER: TEXT_TYPE} if self._fields is None else {**self._fields}
        added = [*wanted.items(), ("finish_reason", TEXT_TYPE), ("error", TEXT_TYPE)]
        if usage:
            added += [("prompt_tokens", "BIGINT"), ("completion_tokens", "BIGINT")]
        added += [(name, TEXT_TYPE) for name in extras]
        taken = {name.lower() for name in original}
        self.names: list[str] = []
        self.types: dict[str, str] = {}
        for name, kind in added:
            free = _free(name, taken)
            self.names.append(free)
            self.types[free] = kind

    @property
    def columns(self) -> list[str]:
        """Those of the answer itself."""
        return self.names[: 1 if self._fields is None else len(self._fields)]

    def values(self, answer: Answer) -> tuple[list[Any], str | None]:
        """The values of the added columns, and the error among them."""
        cells, error = self._cells(answer)
        values = [*cells, answer.finish_reason, error]
        if self._usage:
            values += [answer.prompt_tokens, answer.completion_tokens]
        return [*values, *map(answer.extras.get, self._extras)], error

    def _cells(self, answer: Answer) -> tuple[list[Any], str | None]:
        if self._fields is None:
            return [answer.text], answer.error
        empty = [None] * len(self._fields)
        if answer.error is not None or answer.text is None:
            return empty, answer.error
        try:
            value = json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            cut = answer.finish_reason == LENGTH
            return (
                empty,
                "the answer was cut off by max_tokens" if cut else f"the answer is not JSON: {error}",
            )
        if not isinstance(value, dict):
            return empty, "the answer is not a JSON object"
        cells = [value.get(name) for name in self._fields]
        for name, kind, cell in zip(self._fields, self._fields.values(), cells, strict=True):
            if not _fits(cell, kind):
                return empty, f"{name}: {str(cell)[:40]} does not fit its column"
        return cells, None


def _fits(cell: Any, kind: str) -> bool:
    if kind == "BIGINT":
        whole = isinstance(cell, int) or (isinstance(cell, float) and cell.is_integer())
        return cell is None or (whole and not isinstance(cell, bool) and cell in INTEGERS)
    if kind == "DOUBLE":
        return cell is None or (isinstance(cell, (int, float)) and abs(cell) < 1e308)
    return kind != "BOOLEAN" or isinstance(cell, (bool, type(None)))


def _free(name: str, taken: set[str]) -> str:
    """The name, or with the first suffix with which it is free; it is taken then."""
    free, number = name, 1
    while free.lower() in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free.lower())
    return free


def parse_answer(result: Mapping[str, Any]) -> Answer:
    """The answer in a line of batch output, which is in OpenAI's format."""
    error, response = result["error"], result["response"]
    if error is None and response["status_code"] != 200:
        error = response["body"]["error"]
    if error is not None:
        return Answer(error.get("partial"), None, _line(error))
    body = response["body"]
    choice, usage = body["choices"][0], body["usage"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    found = {"logprobs": (choice.get("logprobs") or {}).get("content"), "token_ids": choice.get("token_ids")}
    extras = {name: value for name, value in found.items() if value is not None}
    return Answer(
        text, choice["finish_reason"], None, usage["prompt_tokens"], usage["completion_tokens"], extras
    )


def _line(error: Mapping[str, Any]) -> str:
    message = " ".join(str(error.get("message") or "").split())
    return f"{error['code']}: {message}" if error.get("code") else message
