"""The JSON Schema of answers: an object, each of whose properties becomes a column."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.base.errors import TableError
from tables.base.table import MAX_COLUMNS, TEXT_TYPE

MAX_BYTES = 1 << 20
TYPES = {
    "string": "string",
    "str": "string",
    "text": "string",
    "integer": "integer",
    "int": "integer",
    "number": "number",
    "float": "number",
    "boolean": "boolean",
    "bool": "boolean",
}
FIELD = re.compile(r"\s*([^:,]+?)\s*:\s*([^,]+?)\s*")
SQL_TYPES = {"string": TEXT_TYPE, "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}


@dataclass(frozen=True)
class AnswerSchema:
    """content: the JSON Schema. types: the SQL type of each property; nested ones are JSON text."""

    content: Mapping[str, Any]
    types: Mapping[str, str]

    @property
    def response_format(self) -> dict[str, Any]:
        """As requests carry it."""
        inner = {"name": "answer", "schema": self.content, "strict": True}
        return {"type": "json_schema", "json_schema": inner}


def read_schema(path: Path) -> AnswerSchema:
    """The schema in a file. Raises TableError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TableError(f"{path}: a schema of more than {MAX_BYTES >> 20} MiB is too large")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TableError(f"{path}: not valid UTF-8") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TableError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: not valid JSON: {error}") from None
    return check_schema(content, str(path))


def check_schema(content: Any, name: str) -> AnswerSchema:
    """Raises TableError, in which the name stands for the schema."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(content, dict):
        raise TableError(f"{name}: no JSON Schema: it must be an object")
    try:
        Draft202012Validator.check_schema(content)
    except SchemaError as error:
        place = ".".join(str(part) for part in error.absolute_path)
        raise TableError(f"{name}: no JSON Schema: {place or 'it'}: {error.message[:200]}") from None
    except RecursionError:
        raise TableError(f"{name}: no JSON Schema: nested too deeply") from None
    properties = content.get("properties")
    if content.get("type") != "object" or not properties:
        raise TableError(f"{name}: must be the schema of an object with properties, which become columns")
    if len(properties) > MAX_COLUMNS:
        raise TableError(f"{name}: has {len(properties):,} properties; at most {MAX_COLUMNS:,} are possible")
    types = {field: _sql_type(inner) for field, inner in properties.items()}
    return AnswerSchema(content, types)


def schema_of_fields(text: str) -> AnswerSchema:
    """The schema of "name:type,...", where a type is one of TYPES, or words such as good|bad.

    Raises TableError.
    """
    properties: dict[str, Any] = {}
    for part in text.split(","):
        found = FIELD.fullmatch(part)
        if found is None:
            raise TableError(f"{part.strip()!r} is not name:type, as in mood:good|bad,stars:integer")
        name, kind = found.groups()
        if name in properties:
            raise TableError(f"two fields have the name {name!r}")
        properties[name] = _field(name, kind)
    content = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return check_schema(content, "the fields")


def _field(name: str, kind: str) -> dict[str, Any]:
    if "|" in kind:
        words = [word.strip() for word in kind.split("|")]
        if not all(words):
            raise TableError(f"{name}: {kind!r} has an empty word")
        return {"type": "string", "enum": [*dict.fromkeys(words)]}
    if kind not in TYPES:
        known = ", ".join(dict.fromkeys(TYPES.values()))
        raise TableError(f"{name}: there is no type {kind!r}; there are {known}, and words such as good|bad")
    return {"type": TYPES[kind]}


def _sql_type(inner: Any) -> str:
    kind = inner.get("type") if isinstance(inner, dict) else None
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    return SQL_TYPES.get(kind, TEXT_TYPE) if isinstance(kind, str) else TEXT_TYPE
