"""What a batch that is made of a table keeps beside its file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tables.answers.answer_columns import EXTRAS


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of a preview. rows: how many are shown. count: whether all rows are read and counted."""

    rows: int
    count: bool


@dataclass(frozen=True, slots=True)
class TableOptions:
    """name: of the file, whose ending tells the kind. template, system: sources of templates.

    schema: the JSON Schema of the answers. columns: those that the output keeps; None is all. id_column: the
    values of this column are the custom ids; None is the row number. body: further fields of each request.
    """

    name: str
    template: str
    system: str | None = None
    schema: Mapping[str, Any] | None = None
    columns: Sequence[str] | None = None
    id_column: str | None = None
    body: Mapping[str, Any] | None = None

    def dumped(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def loaded(cls, text: str) -> TableOptions:
        return cls(**json.loads(text))

    def to_json(self) -> dict[str, Any]:
        """As HTTP shows it: the fields under the names with which they came."""
        return {name: value for name, value in asdict(self).items() if name != "name"}

    def extras(self) -> list[str]:
        """What the body asks for beside the answer, and gets columns for."""
        body = self.body or {}
        asked = {
            "logprobs": body.get("logprobs") is not None and body["logprobs"] is not False,  # 0 asks too
            "token_ids": body.get("return_token_ids"),
        }
        return [name for name in EXTRAS if asked[name]]

    def request_body(self, prompt: str, system: str | None) -> dict[str, Any]:
        """The body of one row's request."""
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        body = {**(self.body or {}), "messages": messages}
        if self.schema is not None:
            inner = {"name": "answer", "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": inner}
        return body
