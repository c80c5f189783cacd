"""The fields of a batch that is made of a table, and the checks that need no look at the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from tables.base.errors import TableError
from tables.base.kinds import ENDINGS, is_table, kind_of
from tables.conversion.options import TableOptions
from tasks.base.errors import InvalidRequest
from tasks.records.endpoints import CHAT, JOBS
from tasks.schema.job_request import Problem, invalid_request, read_job
from tasks.schema.messages import Strict
from tasks.schema.openai_requests import in_body, job_fields

MAX_TEMPLATE = 16_384  # characters; compiling them takes 0.2 s
MAX_COLUMN = 512  # characters of a name
MAX_COLUMNS = 1024
MAX_SCHEMA_BYTES = 32_768  # of JSON; checking them takes 0.5 s
MAX_FIELDS_BYTES = 16_384  # of `body` in JSON
MADE = ("messages", "prompt")  # fields of a request that the template makes

Source = Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)]
Column = Annotated[str, Field(min_length=1, max_length=MAX_COLUMN)]


class TableFields(Strict):
    """The other fields go with a template alone."""

    template: Source | None = Field(
        None,
        description="The input file is a table, of the kind that its name says; each row is a request, whose "
        "prompt is this Jinja template over the columns.",
    )
    system: Source | None = Field(None, description="A template of the system message.")
    schema_: dict[str, Any] | None = Field(
        None,
        alias="schema",
        description="A JSON Schema of an object, to which answers are held; its properties become columns.",
    )
    columns: Annotated[list[Column], Field(min_length=1, max_length=MAX_COLUMNS)] | None = Field(
        None,
        description="Columns of the table that the output keeps. Default: all.",
        json_schema_extra={"uniqueItems": True},
    )
    id_column: Column | None = Field(
        None, description="Its values are the custom ids. Default: the numbers of the rows."
    )
    body: dict[str, Any] | None = Field(
        None, description="Further fields of each request, such as max_tokens, temperature and model."
    )

    def options(self) -> TableOptions | None:
        """Unchecked, and without the file's name; None without a template. Raises InvalidRequest."""
        if self.template is None:
            for name in ("system", "schema", "columns", "id_column", "body"):
                if getattr(self, "schema_" if name == "schema" else name) is not None:
                    raise _wrong("goes with a template, of a batch that is made of a table", name)
            return None
        return TableOptions(
            "", self.template, self.system, self.schema_, self.columns, self.id_column, self.body
        )


def checked_options(options: TableOptions, endpoint: str, filename: str) -> TableOptions:
    """The options with the name of the file. Raises InvalidRequest."""
    if endpoint not in (CHAT, JOBS):
        raise _wrong(f"must be {CHAT} or {JOBS} for a table", "endpoint")
    check_kind(filename)
    _check_template(options.template, "template")
    if options.system is not None:
        _check_template(options.system, "system")
    if options.schema is not None:
        _check_schema(options.schema)
    columns = options.columns or ()
    for name in columns:
        if columns.count(name) > 1:
            raise _wrong(f"has {name!r} twice", "columns")
    if options.body is not None:
        _check_body(options, endpoint)
    return replace(options, name=filename)


def check_is_no_table(filename: str) -> None:
    """Of a batch without a template. Raises InvalidRequest."""
    if is_table(filename):
        raise _wrong(f"is required: {filename!r} is a table by its name", "template")


def check_kind(filename: str) -> None:
    """Whether a file of this name can be a table. Raises InvalidRequest."""
    try:
        kind = kind_of(filename)
    except TableError as error:
        raise _wrong(str(error), "input_file_id") from None
    if kind is None:
        known = ", ".join(ENDINGS)
        raise _wrong(
            f"the file's name {filename!r} has none of the endings of tables: {known}", "input_file_id"
        )


def _check_template(source: str, field: str) -> None:
    from tables.templates.template import Template

    try:
        Template(source)
    except TableError as error:
        raise _wrong(str(error), field) from None


def _check_schema(schema: Mapping[str, Any]) -> None:
    from tables.answers.schema import check_schema

    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise _wrong(f"has more than {MAX_SCHEMA_BYTES:,} bytes", "schema")
    try:
        check_schema(schema, "schema")
    except TableError as error:
        raise _wrong(str(error).removeprefix("schema: "), "schema") from None


def _check_body(options: TableOptions, endpoint: str) -> None:
    """The body of a row must be one that the endpoint takes."""
    body = options.body or {}
    if len(json.dumps(body)) > MAX_FIELDS_BYTES:
        raise _wrong(f"has more than {MAX_FIELDS_BYTES:,} bytes", "body")
    for name in MADE:
        if name in body:
            raise _wrong("is made by the template", f"body.{name}")
    if options.schema is not None and "response_format" in body:
        raise _wrong("give this or schema", "body.response_format")
    made = options.request_body("x", None if options.system is None else "x")
    line = {"custom_id": "1", "method": "POST", "url": endpoint, "body": made}
    fields, problems = job_fields(line)
    job = problems or read_job(fields)
    if isinstance(job, list):
        raise invalid_request((problems or in_body(job, line))[0])


def _wrong(message: str, field: str) -> InvalidRequest:
    return invalid_request(Problem(message, field))
