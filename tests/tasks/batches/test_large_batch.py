"""5,000 lines by real workers: each answered once, in order, with its own answer.

Most are refused when they are read: in the files they are as good as those that run, and cost no job.
"""

from __future__ import annotations

from typing import Any

from tasks.base.settings import Settings
from tasks.records.batch import BatchStatus
from tests.support.workers import Workers
from tests.tasks.helpers.client import Client, line

LINES = 5_000  # twenty chunks: reading, sending and collecting all go round several times
RUN = 5  # one line in so many is a job
BROKEN, FAILING = 503, 511  # every so many lines one of them
INSTRUCTIONS = [f"Instruction {i}. " + "Be brief. " * 60 for i in range(3)]
INSTRUCTED = 10  # one line in so many has one of them, so that lines are not sent in the file's order
TIMEOUT_S = 200.0


def prompt(number: int) -> str:
    turn, rest = divmod(number, INSTRUCTED)
    return f"{INSTRUCTIONS[turn % 3]}say {number}" if rest == 2 else f"say {number}"


def made(number: int) -> Any:
    if number % BROKEN == 1:
        return b"{"
    if number % FAILING == 1:
        return line(number, f"{prompt(number)} fail=boom")
    return line(number, prompt(number)) if number // INSTRUCTED % RUN == 0 else line(number, max_tokens=-1)


def test_thousands_of_lines_are_answered_in_order(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    workers.model(settings)
    batch = client.end(client.create([made(n) for n in range(LINES)]), TIMEOUT_S)
    assert batch.status is BatchStatus.COMPLETED
    broken, failing = (set(range(1, LINES, step)) for step in (BROKEN, FAILING))
    failing -= broken
    answered = [n for n in range(LINES) if n // INSTRUCTED % RUN == 0 and n not in broken | failing]
    bad = sorted({*range(LINES)} - {*answered})
    assert batch.codes == {
        "invalid_json_line": len(broken),
        "invalid_value": len(bad) - len(broken) - len(failing),
        "boom": len(failing),
    }
    output = client.read(batch.output_file_id)
    assert [entry["custom_id"] for entry in output] == [f"id-{n}" for n in answered]
    texts = [entry["response"]["body"]["choices"][0]["text"] for entry in output]
    assert texts == [prompt(n) for n in answered]
    errors = client.read(batch.error_file_id)
    assert [entry["error"]["line"] for entry in errors] == [n + 1 for n in bad]
    assert (batch.total, batch.completed, batch.failed) == (LINES, len(output), len(errors))
