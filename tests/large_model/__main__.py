"""Large models through the whole system: `medusaq up`, a batch, a killed worker, two that do not fit.

    python -m tests.large_model [--made FOLDER] [--shapes 3B 7B] [--format q4_k_m] [--record [FILE]]

The models are the default one, widened with zeros (tests/benchmarks/large/widened.py): memory and times are
those of their shape, the words those of the small one. --made keeps the files for the next run. Exit code 1
when a line was lost or doubled, or a worker took more or less memory than was expected of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from engine.llama.model import default_model_path
from engine.weights.formats import FORMATS
from medusaq import Batch, Client, MedusaqError
from tests.benchmarks.large.shapes import PRESETS, Shape, parse_shape
from tests.benchmarks.large.widened import CannotWiden, widen
from tests.large_model.stack import Failed, Running, Stack
from tests.support.measuring.report import Report, add_record, shown_command

LINES, MAX_TOKENS = 64, 24  # of a batch
WITHIN = 0.10  # of the expected memory
LEFT_OF_CONTEXT = 256  # tokens of the longest request that are not prompt
KV_CELLS = 8192
WAIT_S = 3600.0
COLUMNS = ("model", "what", "found")
Row = tuple[str, str, bool]  # what, what was found, whether it is right


def one_model(stack: Stack, model: Path, kv_cells: int) -> Iterator[Row]:
    """What is done with a model, in this order. Raises Failed."""
    said = stack.doctor(model)
    yield "`medusaq doctor`, memory", said["memory"], True
    yield "`medusaq doctor`, lanes", said["lanes"], True
    with stack.up([model]) as running, Client(running.url) as client:
        yield "`medusaq up` takes prompts after", _seconds(running.ready_s), True
        times = [_first_token_s(client) for _ in range(3)]
        yield "first token of the first requests", ", ".join(_seconds(each) for each in times), True
        yield _measured(stack, model)
        yield _killed(
            running, client
        )  # the next worker knows what is faster: its memory is that of one format
        yield _batch(client)
        yield _longest(client, kv_cells)
        yield _memory(running, stack, model)


def two_models(stack: Stack, models: list[Path]) -> Iterator[Row]:
    """Where memory suffices for the larger one. Raises Failed."""
    budget = max(stack.needed(models)) * 1.02
    memory = f"{budget / 1e9:.2f}GB"
    with stack.up(models, "--memory", memory) as running, Client(running.url) as client:
        for model in [*models, models[0]]:
            began = time.monotonic()
            job = client.wait(client.submit("Name a colour.", model=model.stem, max_tokens=8), WAIT_S)
            yield (
                f"--memory {memory}: {model.stem} answers after",
                _seconds(time.monotonic() - began),
                bool(job.text),
            )


def _first_token_s(client: Client) -> float:
    began = time.monotonic()
    pieces = client.stream("Name three colours.", max_tokens=8)
    next(pieces)
    took = time.monotonic() - began
    for _ in pieces:
        pass
    return took


def _measured(stack: Stack, model: Path) -> Row:
    began = time.monotonic()
    while "until a worker has measured" in (found := stack.doctor(model)["weights"]):
        if time.monotonic() - began > WAIT_S:
            raise Failed("the number formats are not measured")
        time.sleep(1)
    return "number format, measured while idle", f"{found}, after {_seconds(time.monotonic() - began)}", True


def _submit(client: Client) -> Batch:
    rows = [f"{number}: say why the sea is salty." for number in range(LINES)]
    return client.submit_batch(rows, max_tokens=MAX_TOKENS, temperature=0)


def _judged(client: Client, batch: Batch) -> tuple[int, int, int]:
    """Lines without an answer, lines with several, and the tokens of all."""
    answers = Counter[str]()
    tokens = 0
    for line in client.output(batch):
        answers[line["custom_id"]] += 1
        tokens += line["response"]["body"]["usage"]["completion_tokens"]
    return LINES - len(answers), sum(count > 1 for count in answers.values()), tokens


def _batch(client: Client) -> Row:
    began = time.monotonic()
    batch = client.wait(_submit(client), WAIT_S)
    took = time.monotonic() - began
    lost, doubled, tokens = _judged(client, batch)
    found = f"{_seconds(took)}, {tokens / took:.1f} tokens/s, {lost} lost, {doubled} doubled"
    return f"a batch of {LINES} lines", found, lost == doubled == 0


def _longest(client: Client, kv_cells: int) -> Row:
    began = time.monotonic()
    prompt = "salt " * (kv_cells - LEFT_OF_CONTEXT)
    job = client.wait(client.submit(prompt, max_tokens=8, temperature=0), WAIT_S)
    took = time.monotonic() - began
    right = job.prompt_tokens > kv_cells - 2 * LEFT_OF_CONTEXT and job.completion_tokens > 0
    return f"a prompt of {job.prompt_tokens:,} tokens", f"answered after {_seconds(took)}", right


def _memory(running: Running, stack: Stack, model: Path) -> Row:
    status = Path(f"/proc/{running.worker().pid}/status").read_text(encoding="utf-8")
    [peak] = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    [expected] = stack.needed([model])
    found = f"{peak / 1e9:.2f} GB at most, {expected / 1e9:.2f} GB expected: {peak / expected:.2f}"
    return "memory of the worker", found, abs(peak / expected - 1) <= WITHIN


def _killed(running: Running, client: Client) -> Row:
    batch = _submit(client)
    while not client.batch(batch.id).completed:
        time.sleep(0.1)
    running.worker().kill()
    began = time.monotonic()
    batch = client.wait(batch, WAIT_S)
    lost, doubled, _ = _judged(client, batch)
    found = f"ended {_seconds(time.monotonic() - began)} later, {lost} lost, {doubled} doubled"
    return "kill -9 of the worker in the middle of a batch", found, lost == doubled == 0


def _seconds(took: float) -> str:
    return f"{took:.1f} s" if took < 100 else f"{took:.0f} s"


def _made(folder: Path, shape: Shape, format: str) -> Path:
    small = Path(default_model_path())
    path = folder / f"{small.stem}-{shape}-{format}.gguf"
    if not path.exists():
        print(f"writing {path}", flush=True)
        widen(small, path, shape, format)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--made", type=Path, help="a folder to keep the models in, 8 GB by default")
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=[PRESETS["3B"], PRESETS["7B"]])
    parser.add_argument("--format", choices=list(FORMATS), default="q4_k_m")
    parser.add_argument("--kv-cells", type=int, default=KV_CELLS, help="tokens of the longest request")
    add_record(parser)
    options = parser.parse_args()
    report = Report(shown_command("tests.large_model", sys.argv[1:]), options.record)
    rows: list[tuple[str, Row]] = []

    def carry_out(name: str, found: Iterator[Row]) -> None:
        for row in found:
            print(f"{name}: {row[0]}: {row[1]}", flush=True)
            rows.append((name, row))

    with tempfile.TemporaryDirectory(prefix="medusaq-large-") as folder:
        stack = Stack(Path(folder), kv_cells=options.kv_cells)
        try:
            models = [_made(options.made or Path(folder), shape, options.format) for shape in options.shapes]
            for shape, model in zip(options.shapes, models, strict=True):
                carry_out(f"{shape}, {options.format}", one_model(stack, model, options.kv_cells))
            if len(models) > 1:
                carry_out("both", two_models(stack, models))
        except (CannotWiden, Failed, MedusaqError) as error:
            print(f"error: {error}\n{stack.tail()}")
            return 1
    wrong = [f"{name}: {what}: {found}" for name, (what, found, right) in rows if not right]
    print()
    with report.table("large-model", *COLUMNS, keep=not wrong) as table:
        for name, (what, found, _) in rows:
            table.row(name, what, found)
    for each in wrong:
        print(f"wrong: {each}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
