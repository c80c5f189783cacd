"""The reader of requests for `run` and `validate`: turns each line into a job or its problems."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from cli.base.errors import BadInput
from cli.prompts.custom_id_index import CustomIdIndex
from cli.prompts.formats import Format
from cli.prompts.record_reader import Record, records
from common.unicode import is_unicode
from tasks.schema.job_request import HALF_PAIR, Problem, job_problems
from tasks.schema.openai_requests import (
    MAX_CUSTOM_ID,
    default_id,
    in_body,
    is_batch_line,
    job_fields,
    line_fields,
)

DUPLICATE = "duplicate_custom_id"


@dataclass(frozen=True)
class ReadOptions:
    """How to read an input. defaults are job fields for the lines that do not set their own.

    template, system: of the prompts of rows; system is text as it stands for lines of requests.
    column: stands for the template of this column. id_column: gives the custom_ids of rows.
    model replaces that of the lines; "" removes it (a local stack has only one model).
    limit: only the first so many lines or rows are read. template_file: that has the template, for advice.
    """

    form: Format = Format.AUTO
    column: str | None = None
    system: str | None = None
    raw: bool = False
    model: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    id_column: str | None = None
    limit: int | None = None
    template_file: Path | None = None

    @property
    def of_rows(self) -> bool:
        """Whether there are options that only tables have."""
        return not (self.template is None and self.column is None and self.id_column is None)

    def check(self) -> None:
        """Raise BadInput for options with which no line would be valid."""
        if self.column is not None and self.template is not None:
            raise BadInput("give either a template or --column, which stands for the template of one column")
        if self.of_rows and self.form is Format.BATCH:
            raise BadInput("batch lines are requests already: --template, --column and --id are for tables")
        if self.system is not None and self.raw:
            raise BadInput("--system needs the chat template, which --raw turns off: give only one of them")
        if problems := job_problems({"prompt": "x", **self.defaults}):
            raise BadInput(f"--{str(problems[0]).replace('_', '-', 1)}")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of the file. job is what POST /v1/jobs takes, empty when there are problems.

    own_max_tokens: whether it brings its own, which the command's default does not replace.
    """

    index: int  # among the non-blank lines, from 0
    number: int  # in the file, from 1
    custom_id: str | None
    job: dict[str, Any]
    problems: tuple[Problem, ...] = ()
    own_max_tokens: bool = False


class PromptReader:
    """Reads one stream once. kinds: counts the lines of each format."""

    def __init__(self, options: ReadOptions, form: Format, kinds: Counter[str]) -> None:
        self._options = options
        self._form = form
        self.kinds = kinds

    def read(self, stream: io.BufferedReader) -> Iterator[PromptLine]:
        """Yield the lines. Raises BadInput if the whole file is unreadable."""
        with contextlib.closing(CustomIdIndex()) as seen:
            for index, record in enumerate(islice(records(stream, self._form), self._options.limit)):
                yield self._line(index, record, self._form, seen)

    def _line(self, index: int, record: Record, form: Format, seen: CustomIdIndex) -> PromptLine:
        if isinstance(record.value, Problem):
            self.kinds["unreadable"] += 1
            return PromptLine(index, record.number, None, {}, (record.value,))
        value = record.value
        batch = form is Format.BATCH or is_batch_line(value)
        self.kinds["batch" if batch else form.value] += 1
        if not is_unicode(value):  # further problems could quote text that cannot be encoded
            wrong: list[Problem] = []
            custom_id = checked_id(value.get("custom_id"), record.number, wrong, seen)
            wrong = wrong or [Problem(HALF_PAIR, code="invalid_json_line")]
            return PromptLine(index, record.number, custom_id, {}, tuple(wrong))
        fields, problems = job_fields(value) if batch else line_fields(value)
        custom_id = checked_id(value.get("custom_id"), record.number, problems, seen)
        job = completed(fields, self._options, self._options.system)
        if fields or not problems:
            problems += in_body(job_problems(job), value)
        own = fields.get("max_tokens") is not None
        return PromptLine(index, record.number, custom_id, {} if problems else job, tuple(problems), own)


def completed(fields: dict[str, Any], options: ReadOptions, system: str | None) -> dict[str, Any]:
    """Merge a line's fields with the command's defaults and overrides, and with a system message."""
    job = {**options.defaults, **fields}
    if options.raw and "prompt" in job:
        job.setdefault("raw", True)
    if options.model is not None:
        job.pop("model", None)
        if options.model:
            job["model"] = options.model
    if system and not job.get("raw"):
        _add_system(job, system)
    return job


def checked_id(
    given: Any, number: int, problems: list[Problem], seen: CustomIdIndex, what: str = "line"
) -> str | None:
    """The custom_id, by default line-N; None, with a problem, for one that cannot be used."""
    custom_id = default_id(number, what) if given is None else given
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        problems.append(Problem(f"must be a string of 1 to {MAX_CUSTOM_ID} characters", "custom_id"))
        return None
    if not is_unicode(custom_id):
        problems.append(Problem(HALF_PAIR, "custom_id", "invalid_json_line"))
        return None
    first = seen.first(custom_id, number)
    if first != number:
        problems.append(Problem(f"{custom_id!r} is also that of {what} {first}", "custom_id", DUPLICATE))
    return custom_id


def _add_system(job: dict[str, Any], system: str) -> None:
    """Put a system message first, unless the line brings its own."""
    instruction = {"role": "system", "content": system}
    messages = job.get("messages")
    if isinstance(messages, list):
        if not any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
            job["messages"] = [instruction, *messages]
    elif isinstance(job.get("prompt"), str) and job["prompt"]:
        job["messages"] = [instruction, {"role": "user", "content": job.pop("prompt")}]
