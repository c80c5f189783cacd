"""What limits on compiling a schema cost, and how long ordinary requests wait beside costly schemas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from engine import RequestRefused, response_grammar
from engine.llama.model import Model
from engine.sampling.grammar import Grammars
from tests.support.measuring.report import Report

HOSTILE = 16  # requests at once, as many as an engine has slots
HOSTILE_S = 20.0
COSTLY = 99_999_989
ALONE, BESIDE = ((f"{kind}, median", f"{kind}, p95", f"{kind}, longest") for kind in ("alone", "beside"))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name", "age"],
}


def measure(model: Path, report: Report) -> None:
    """Seconds from asking for a constraint until it is there, and the memory of all processes."""
    grammars = Grammars(Model(str(model)))
    number = count()
    known = _grammar(PERSON)
    forms: dict[str, Callable[[], str]] = {
        "a JSON object's grammar": lambda: response_grammar({"type": "json_object"}) or "",
        "a schema seen before": lambda: known,
        "a new schema": lambda: _grammar({**PERSON, "title": str(next(number))}),
    }
    try:
        grammars.begin(forms["a JSON object's grammar"]())  # tokenizes the vocabulary, once for each engine
        first = _seconds(grammars, known)
        alone = {name: [_seconds(grammars, form()) for _ in range(50)] for name, form in forms.items()}
        with report.table("schemas", "what waits", *ALONE, *BESIDE) as table:
            beside, refused, (before, most) = _beside_costly(grammars, forms, number)
            for name, waits in alone.items():
                table.row(name, *quantiles_ms(waits), *quantiles_ms(beside[name]))
            table.note(
                f"The first schema of an engine takes {first * 1e3:.0f} ms. Beside: {HOSTILE} requests at a "
                f"time for schemas that cost more than is allowed (`multipleOf: {COSTLY}`), each new, of "
                f"which {len(refused)} were refused. Memory of all processes: {before >> 20} MiB before, at "
                f"most {most >> 20} MiB."
            )
    finally:
        grammars.close()


def _beside_costly(
    grammars: Grammars, forms: dict[str, Callable[[], str]], number: count[int]
) -> tuple[dict[str, list[float]], list[float], tuple[int, int]]:
    """Seconds of each form, seconds of those that were refused, and the memory before and at most."""
    over = threading.Event()
    refused: list[float] = []

    def ask() -> None:
        while not over.is_set():
            schema = {"type": "integer", "multipleOf": COSTLY, "title": str(next(number))}
            began = time.perf_counter()
            try:
                grammars.begin(_grammar(schema))
            except RequestRefused:
                refused.append(time.perf_counter() - began)

    before = most = _memory()
    hostile = [threading.Thread(target=ask) for _ in range(HOSTILE)]
    for thread in hostile:
        thread.start()
    waits: dict[str, list[float]] = {name: [] for name in forms}
    ends = time.monotonic() + HOSTILE_S
    while time.monotonic() < ends:
        for name, form in forms.items():
            waits[name].append(_seconds(grammars, form()))
            most = max(most, _memory())
    over.set()
    for thread in hostile:
        thread.join()
    return waits, refused, (before, most)


def _grammar(schema: dict[str, Any]) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return response_grammar(form) or ""


def _seconds(grammars: Grammars, grammar: str) -> float:
    began = time.perf_counter()
    grammars.begin(grammar)
    return time.perf_counter() - began


def _memory() -> int:
    """Bytes of this process and its children, what they share counted once."""
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def quantiles_ms(seconds: list[float]) -> tuple[str, str, str]:
    """Median, p95 and longest."""
    p95 = quantiles(seconds, n=20, method="inclusive")[-1]
    middle, late, longest = (1e3 * value for value in (median(seconds), p95, max(seconds)))
    return f"{middle:.1f} ms", f"{late:.1f} ms", f"{longest:.0f} ms"
