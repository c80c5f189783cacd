"""Lines of the results file, in OpenAI's batch output format, from job records and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cli.prompts import PromptLine
from tasks.openai_answers import answer
from tasks.requests import Problem

OK = 200


def finished(line: PromptLine, record: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """The line of a job that has ended. model is the served one, for records that name none."""
    if record["status"] == "succeeded":
        response = {"status_code": OK, "request_id": record["id"], "body": answer(record, model)}
        return _line(line, response, None)
    error = dict(record["error"] or {"code": f"job_{record['status']}", "message": _unfinished(record)})
    error["request_id"] = record["id"]
    if record["result"] is not None and record["result"]["text"]:
        error["partial"] = record["result"]["text"]
    return _line(line, None, error)


def refused(line: PromptLine, status: int, request_id: str, error: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a request that the gateway refused with a 4xx."""
    return _line(
        line, {"status_code": status, "request_id": request_id, "body": {"error": dict(error)}}, None
    )


def invalid(line: PromptLine) -> dict[str, Any]:
    """The line of an input line that was never sent."""
    return _line(line, None, {**_first(line.problems), "line": line.number})


def error_code(result: Mapping[str, Any]) -> str | None:
    """Why a line of the results failed; None for one that did not."""
    if result["error"] is not None:
        return str(result["error"]["code"])
    response = result["response"]
    if response["status_code"] == OK:
        return None
    return str(response["body"]["error"].get("code") or f"http_{response['status_code']}")


def _line(line: PromptLine, response: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": f"batch_req_{line.index + 1}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }


def _first(problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "code": problems[0].code,
        "message": "; ".join(map(str, problems)),
        "param": problems[0].field,
    }


def _unfinished(record: Mapping[str, Any]) -> str:
    reasons = {"cancelled": "the job was cancelled", "expired": "its deadline passed before it ended"}
    return reasons.get(record["status"], "the job failed")
