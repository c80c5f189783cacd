"""A million rows through reading, a template and writing: rows a second, and the most memory of the process.

    python -m tests.benchmarks --only tables

No model answers: what is measured is what a table costs beside its answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables.answers.answer_columns import Answer, AnswerColumns
from tables.answers.schema import schema_of_fields
from tables.base import sql
from tables.sources.open_table import open_table
from tables.targets.create_table import create_table
from tables.templates.template import Template
from tests.benchmarks.common import ToolFailed
from tests.support.measuring.report import Report
from tests.support.workers import ROOT

ROWS = 1_000_000
ENDINGS = ("csv", "parquet")
TEMPLATE = "Classify this review of {{ product }}, of {{ stars }} stars: {{ review }}"
ANSWER = json.dumps({"mood": "good", "reason": "it works"})
QUERY = """
    SELECT i AS id, 'product ' || i % 997 AS product, i % 5 + 1 AS stars,
    'Review ' || i || repeat(': it works, and it is quiet', 1 + i % 7) AS review FROM range({rows}) t(i)
"""


def measure(report: Report, rows: int = ROWS) -> None:
    """A row for each kind of table."""
    columns = ("kind", "rows", "size", "time", "rows/s", "memory at most")
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder,
        report.table("tables", *columns, model="") as table,
    ):
        for ending in ENDINGS:
            source, target = Path(folder) / f"in.{ending}", Path(folder) / f"out.{ending}"
            with sql.connect() as database:
                database.execute(f"COPY ({QUERY.format(rows=rows)}) TO {sql.literal(str(source))}")
            size = source.stat().st_size / 1e6
            command = [sys.executable, "-m", "tests.benchmarks.queue.tables", str(source), str(target)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ToolFailed(done.stderr.strip().splitlines()[-1])
            found = json.loads(done.stdout)
            if found["rows"] != rows:
                raise ToolFailed(f"{found['rows']} of {rows} rows arrived")
            speed = rows / found["seconds"]
            table.row(
                ending,
                f"{rows:,}",
                f"{size:.0f} MB",
                f"{found['seconds']:.1f} s",
                f"{speed:,.0f}",
                f"{found['megabytes']:.0f} MB",
            )


def through(source: Path, target: Path) -> dict[str, float]:
    """What `medusaq run` does with a table: prompts of all rows, then all rows again beside their answers."""
    began = time.perf_counter()
    table, template = open_table(source), Template(TEMPLATE)
    template.check(table.columns)
    for row in table.rows():
        template.render(dict(zip(table.columns, row.values, strict=True)))
    answers = AnswerColumns(table.columns, schema_of_fields("mood:good|bad,reason:string"))
    types = {**table.types(), **answers.types}
    with create_table(target, [*table.columns, *answers.names], types=types) as writer:
        for row in table.rows():
            writer.write([*row.values, *answers.values(Answer(ANSWER, "stop"))[0]])
    seconds = time.perf_counter() - began
    most = _most_memory()
    rows = 0
    for _ in open_table(target).rows():
        rows += 1
    return {"seconds": seconds, "megabytes": most, "rows": rows}


def _most_memory() -> float:
    """Megabytes. getrusage() would count what the parent held when it started this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(through(Path(sys.argv[1]), Path(sys.argv[2]))))
