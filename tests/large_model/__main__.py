"""Large models through the whole system: `medusaq up`, a batch, a killed worker, two that do not fit.

    python -m tests.large_model [--made FOLDER] [--shapes 3B 7B] [--format q4_k_m] [--record [FILE]]

The models are the default one, widened with zeros (tests/benchmarks/large/widened.py): memory and times are
those of their shape, the words those of the small one. --made keeps the files for the next run, --record the
table of a whole run. Exit code 1 when a line was lost or doubled, or when something is not as was said
beforehand: memory, lanes, the longest request, the model that answers.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from engine import EngineError
from engine.llama.model import default_model_path
from engine.weights.formats import FORMATS
from medusaq import Batch, Client, MedusaqError
from tests.benchmarks.common import folder, positive
from tests.benchmarks.large.shapes import PRESETS, name_of, parse_shape
from tests.benchmarks.large.widened import CannotWiden, made
from tests.large_model.stack import Stack, Worker, model_worker
from tests.support.measuring.lines import lost_and_doubled
from tests.support.measuring.report import Report, add_record, shown_command
from tests.support.measuring.sigterm import clean_up_on_sigterm
from tests.support.medusaq_up import Failed, Running

LINES, MAX_TOKENS = 64, 24  # of a batch
ROWS = [str(number) for number in range(1, LINES + 1)]  # their names
WITHIN = 0.10  # of the expected memory
LONGEST = re.compile(r"up to (\d+) tokens")  # what `medusaq doctor` says of the context
LEFT_OF_CONTEXT = 256  # tokens of the longest request that are not prompt
SHAPES, FORMAT, KV_CELLS = [PRESETS["3B"], PRESETS["7B"]], "q4_k_m", 8192
WAIT_S = 3600.0
COLUMNS = ("model", "what", "found")
Row = tuple[str, str, bool]  # what, what was found, whether it is right


def one_model(stack: Stack, model: Path) -> Iterator[Row]:
    """What is done with a model, in this order. Raises Failed."""
    said, [needed] = stack.doctor(model), stack.needed([model])
    nothing = (False, "says nothing")
    for check in ("memory", "context", "lanes"):
        fine, found = said.get(check, nothing)
        yield f"`medusaq doctor`, {check}", found, fine
    with stack.up([model]) as running, Client(running.url) as client:
        yield "`medusaq up` takes prompts after", _seconds(running.ready_s), True
        lanes = stack.lanes()
        expected = said.get("lanes", nothing)[1]
        right = expected.startswith(f"{lanes}; " if lanes else "too little memory")
        yield "lanes of the worker", lanes or "none", right
        times = [_first_token_s(client) for _ in range(3)]
        yield "first token of the first requests", ", ".join(_seconds(each) for each in times), all(times)
        yield _killed(running, client)
        worker = model_worker(running)
        worker.forget_what_was_read()
        yield _batch(client)
        yield _longest(client, said.get("context", nothing)[1])
        yield _memory(worker, needed)


def two_models(stack: Stack, models: list[Path]) -> Iterator[Row]:
    """Where memory suffices for the larger one. Raises Failed, also when both run."""
    memory = f"{max(stack.needed(models)) * 1.02 / 1e9:.2f}GB"
    with stack.up(models, "--memory", memory) as running, Client(running.url) as client:
        for model in [*models, models[0]]:
            began = time.monotonic()
            job = client.wait(client.submit("Name a colour.", model=model.stem, max_tokens=8), WAIT_S)
            took = _seconds(time.monotonic() - began)
            model_worker(running)
            right = bool(job.text) and job.record["model"] == model.stem
            yield f"`--memory {memory}`, a job of {model.stem}", f"answered after {took}", right


def _first_token_s(client: Client) -> float:
    """0 without any."""
    began, took = time.monotonic(), 0.0
    for _ in client.stream("Name three colours.", max_tokens=8):
        took = took or time.monotonic() - began
    return took


def _submit(client: Client) -> Batch:
    rows = [f"{number}: say why the sea is salty." for number in range(LINES)]
    return client.submit_batch(rows, max_tokens=MAX_TOKENS, temperature=0)


def _judged(client: Client, batch: Batch) -> tuple[int, int, int]:
    """Lines without an answer, answers beyond one of each line, and the tokens of all."""
    lines = [*client.output(batch)]
    tokens = sum(line["response"]["body"]["usage"]["completion_tokens"] for line in lines)
    return *lost_and_doubled((line["custom_id"] for line in lines), ROWS), tokens


def _batch(client: Client) -> Row:
    began = time.monotonic()
    batch = client.wait(_submit(client), WAIT_S)
    took = time.monotonic() - began
    lost, doubled, tokens = _judged(client, batch)
    found = f"{_seconds(took)}, {tokens / took:.1f} tokens/s, {lost} lost, {doubled} doubled"
    return f"a batch of {LINES} lines", found, lost == doubled == 0


def _killed(running: Running, client: Client) -> Row:
    batch, killed = _submit(client), model_worker(running)
    limit = time.monotonic() + WAIT_S
    while (now := client.batch(batch.id)).completed < LINES // 2 and not now.ended:
        if time.monotonic() > limit:
            raise Failed(f"half of the batch was not answered within {WAIT_S:.0f} s")
        time.sleep(0.1)
    if now.ended:
        raise Failed(f"the batch was {now.status} before its worker was killed")
    killed.kill()
    began = time.monotonic()
    batch = client.wait(batch, WAIT_S)
    lost, doubled, _ = _judged(client, batch)
    found = f"ended {_seconds(time.monotonic() - began)} later, {lost} lost, {doubled} doubled"
    right = lost == doubled == 0 and model_worker(running).pid != killed.pid
    return f"kill -9 of the worker after {now.completed} of {LINES} lines", found, right


def _longest(client: Client, promised: str) -> Row:
    """A prompt that leaves little of the context that was promised."""
    if not (found := LONGEST.search(promised)):
        return "the longest prompt", f"not known: {promised}", False
    context, began = int(found[1]), time.monotonic()
    prompt = "salt " * (context - LEFT_OF_CONTEXT)
    job = client.wait(client.submit(prompt, max_tokens=8, temperature=0), WAIT_S)
    took = time.monotonic() - began
    right = job.prompt_tokens > context - 2 * LEFT_OF_CONTEXT and job.completion_tokens > 0
    return f"a prompt of {job.prompt_tokens:,} tokens", f"answered after {_seconds(took)}", right


def _memory(worker: Worker, expected: int) -> Row:
    used = worker.bytes()
    found = f"{used / 1e9:.2f} GB, {expected / 1e9:.2f} GB expected: {used / expected:.2f}"
    return "memory of the worker", found, abs(used / expected - 1) <= WITHIN


def _seconds(took: float) -> str:
    return f"{took:.1f} s" if took < 100 else f"{took:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--made", type=folder, help="an existing folder, to keep the models in")
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=SHAPES)
    parser.add_argument("--format", choices=list(FORMATS), default=FORMAT)
    parser.add_argument("--kv-cells", type=positive, default=KV_CELLS, help="tokens of the longest request")
    add_record(parser)
    options = parser.parse_args()
    clean_up_on_sigterm()
    report = Report(shown_command("tests.large_model", sys.argv[1:]), options.record)
    rows: list[tuple[str, Row]] = []

    def carry_out(name: str, found: Iterator[Row]) -> None:
        for row in found:
            print(f"{name}: {row[0]}: {row[1]}", flush=True)
            rows.append((name, row))

    with tempfile.TemporaryDirectory(prefix="medusaq-large-") as passing:
        place, small = (options.made or Path(passing)).absolute(), Path(default_model_path())
        # Small shapes too: what `auto` finds while a worker runs would change what was expected of it.
        stack = Stack(Path(passing), kv_cells=options.kv_cells, weights="as_shipped")
        try:
            models = [made(small, place, shape, options.format) for shape in options.shapes]
            for shape, model in zip(options.shapes, models, strict=True):
                carry_out(f"{name_of(shape)}, {options.format}", one_model(stack, model))
            if len(models) > 1:
                carry_out("both", two_models(stack, models))
        except (CannotWiden, EngineError, Failed, OSError, MedusaqError) as error:
            print(f"error: {error}\n{stack.tail()}")
            return 1
        wrong = [f"{name}: {what}: {found}" for name, (what, found, right) in rows if not right]
        print(f"\n{stack.tail()}" if wrong else "")
    every = options.shapes == SHAPES and (options.format, options.kv_cells) == (FORMAT, KV_CELLS)
    with report.table("large-model", *COLUMNS, keep=every and not wrong) as table:
        for name, (what, found, _) in rows:
            table.row(name, what, found)
    for each in wrong:
        print(f"wrong: {each}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
