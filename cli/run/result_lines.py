"""Lines of the results file, in OpenAI's batch output format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from cli.base.units import shortened
from cli.prompts.prompt_reader import PromptLine
from common.json_text import compact
from tasks.schema.job_request import Problem

OK = 200


def dump(value: object) -> bytes:
    """One line of JSON. Half of a surrogate pair, quoted from a bad line, becomes "?"."""
    return compact(value).encode(errors="replace") + b"\n"


def invalid(line: PromptLine) -> dict[str, Any]:
    """The result line of an invalid input line, which was not sent."""
    error = {**_first(line.problems), "line": line.number}
    return {"id": _id(line.index), "custom_id": line.custom_id, "response": None, "error": error}


def placed(entry: Mapping[str, Any], index: int, number: int, custom_id: str) -> dict[str, Any]:
    """The entry of a batch's file as a result line. number: line number in the input, from 1.

    index: among the non-blank lines, from 0.
    """
    error = entry["error"]
    return {
        **entry,
        "id": _id(index),
        "custom_id": custom_id,
        "error": error if error is None else {**error, "line": number},
    }


def error_code(result: Mapping[str, Any]) -> str | None:
    """The error code of a failed result line; None if it succeeded."""
    if result["error"] is not None:
        return str(result["error"]["code"])
    response = result["response"]
    if response["status_code"] == OK:
        return None
    return str(response["body"]["error"].get("code") or f"http_{response['status_code']}")


def beginnings(results: Path, count: int) -> Iterator[str]:
    """The custom_id and the start of each of the first `count` successful answers."""
    with results.open(encoding="utf-8") as file:
        good = (line for line in map(json.loads, file) if error_code(line) is None)
        for line in islice(good, count):
            text = _answer(line["response"]["body"]["choices"][0])
            yield f"{line['custom_id']}: {shortened(text)}"


def _answer(choice: Mapping[str, Any]) -> str:
    """A completion is bare text, and the message of a tool call may have none."""
    return (choice["message"]["content"] or "") if "message" in choice else str(choice["text"])


def _id(index: int) -> str:
    return f"batch_req_{index + 1}"


def _first(problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "code": problems[0].code,
        "message": "; ".join(map(str, problems)),
        "param": problems[0].field,
    }
