"""Tables of every kind, and batches made of them."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import openai
import openpyxl
from openai.types import Batch

CHAT = "/v1/chat/completions"
TEMPLATE = "{{ product }}: {{ review }}"
CSV = "product;review;stars\nlamp;good, bright;5\ncup;x fail=boom;2\npen;so-so;\n"
ROWS: list[dict[str, Any]] = [
    {"product": "lamp", "review": "good, bright", "stars": 5},
    {"product": "cup", "review": "x fail=boom", "stars": 2},
    {"product": "pen", "review": "so-so", "stars": None},
]
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string"}, "stars": {"type": "integer"}, "parts": {"type": "array"}},
    "required": ["mood"],
}


def upload(client: openai.OpenAI, content: bytes | str, name: str = "reviews.csv") -> str:
    data = content.encode() if isinstance(content, str) else content
    return client.files.create(file=(name, data), purpose="batch").id


def create(
    client: openai.OpenAI, content: bytes | str = CSV, name: str = "reviews.csv", **fields: Any
) -> Batch:
    extra = {"template": TEMPLATE, **fields}
    endpoint = extra.pop("endpoint", CHAT)
    return client.batches.create(
        input_file_id=upload(client, content, name),
        endpoint=endpoint,
        completion_window="24h",
        extra_body=extra,
    )


def parquet(tmp_path: Path) -> bytes:
    path = tmp_path / "made.parquet"
    values = ", ".join(
        f"('{row['product']}', '{row['review']}', {row['stars'] if row['stars'] else 'NULL'})" for row in ROWS
    )
    duckdb.sql(f"COPY (SELECT * FROM (VALUES {values}) t(product, review, stars)) TO '{path}'")
    return path.read_bytes()


def xlsx() -> bytes:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append([*ROWS[0]])
    for row in ROWS:
        sheet.append([*row.values()])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def made(name: str, tmp_path: Path) -> bytes:
    tsv = "".join("\t".join("" if v is None else str(v) for v in row.values()) + "\n" for row in ROWS)
    contents: dict[str, Any] = {
        "r.csv": CSV.encode,
        "r.CSV.gz": lambda: gzip.compress(CSV.encode()),
        "r.tsv": lambda: b"product\treview\tstars\n" + tsv.encode(),
        "r.jsonl": lambda: b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
        "r.json": lambda: json.dumps(ROWS).encode(),
        "r.parquet": lambda: parquet(tmp_path),
        "r.xlsx": xlsx,
    }
    content: bytes = contents[name]()
    return content
