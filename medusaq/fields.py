"""What a caller may set, by the names of the HTTP API (docs/reference/http-api.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

Row = Mapping[str, Any]


class PandasFrame(Protocol):
    """Of pandas, whose rows are read without its index."""

    @property
    def columns(self) -> Any: ...

    def itertuples(self, index: bool = ..., name: str | None = ...) -> Any: ...


class ArrowStream(Protocol):
    """A frame or table of Polars, PyArrow, DuckDB, and others that have the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Frame = PandasFrame | ArrowStream
Rows = str | Path | Iterable[Row | str] | Frame  # the path of a file, or rows; a row that is text is a prompt
Prompt = str | Sequence[Mapping[str, Any]]  # a user's turn, or messages


class Sampling(TypedDict, total=False):
    """Of every request, single or in a batch."""

    raw: bool
    model: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float]
    logprobs: int
    return_token_ids: bool
    ignore_eos: bool
    response_format: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    decoding: str
    acceptance: str


class JobFields(Sampling, total=False):
    """Of a single job."""

    priority: str
    deadline: float
    webhook: Mapping[str, Any]
    metadata: Mapping[str, str]


class Table(TypedDict, total=False):
    """How the rows of a table become requests."""

    template: str
    system: str
    schema: Mapping[str, Any]
    columns: Sequence[str]
    id_column: str


class RunFields(Table, Sampling, total=False):
    """Of run()."""


class Schedule(TypedDict, total=False):
    """Of a batch as a whole."""

    endpoint: str
    priority: int
    deadline: float
    webhook: Mapping[str, Any]
    metadata: Mapping[str, str]
    dry_run: bool
    output_expires_after: Mapping[str, Any]


class BatchFields(Schedule, RunFields, total=False):
    """Of a batch."""
