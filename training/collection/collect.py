"""Generate with the model itself, and record the hidden state from which each token was emitted.

    python -m training.collection.collect --model MODEL.gguf --prompts FILE --out FOLDER --tokens 1000000

After an interruption at any point, even kill -9, the same command resumes where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console

from engine import EngineConfig, EngineError, Request, RequestRefused, SamplingParams
from engine.base.request import SEED_LIMIT
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.core.sequence import Ended, SequenceState
from engine.core.token_tree import Tree
from engine.host.file_digest import sha256
from engine.llama.model import default_model_path
from engine.weights.format_selection import open_model
from training.base.errors import CollectionError, TrainingError
from training.base.progress import Display, say
from training.collection.shards import (
    SHARD_TOKENS,
    Collection,
    Identity,
    Recorded,
    States,
)
from training.prompts.prompts import read_prompts

DEFAULT_TOKENS = 1_000_000
DEFAULT_MAX_TOKENS = 176  # most answers of a small model are shorter; longer ones repeat themselves
DEFAULT_SLOTS = 16
DEFAULT_KV_CELLS = 12288  # 16 requests of 768 tokens
GREEDY_SHARE = 0.7  # of the first answers to prompts, as in bulk use. All other answers are sampled
SAMPLED_TEMPERATURE = (0.7, 1.0)
SAMPLED_TOP_P = 0.95
WAITING = 4  # requests queued beyond the running ones, so that a free slot never waits
FLOAT16_LIMIT = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """model: None is the default one. tokens: total output tokens. threads: 0 is every core.

    part: (k, n) takes every n-th prompt from the k-th on. slots: concurrent requests.
    """

    prompts: tuple[Path, ...]
    out: Path
    model: str | None = None
    tokens: int = DEFAULT_TOKENS
    max_tokens: int = DEFAULT_MAX_TOKENS
    seed: int = 0
    slots: int = DEFAULT_SLOTS
    kv_cells: int = DEFAULT_KV_CELLS
    threads: int = 0
    gpu_layers: int = -1
    greedy_share: float = GREEDY_SHARE
    part: tuple[int, int] = (0, 1)


class Recorder(DraftSource):
    """Keeps each emitted token's hidden state; the engine gives them to draft sources. Drafts nothing."""

    name = "recorder"
    needs_hidden = True

    def __init__(self) -> None:
        self._open: dict[str, tuple[SequenceState, list[States]]] = {}
        self._ends: Callable[[int], bool] = lambda _: False

    def watch(self, ends_generation: Callable[[int], bool]) -> None:
        """End requests after their first end token, which is recorded: heads must learn it, too."""
        self._ends = ends_generation

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:  # noqa: ARG002
        return [[] for _ in sequences]

    def open(self, sequence: SequenceState) -> None:
        """Begin to record a sequence, before it runs."""
        self._open[sequence.request.id] = sequence, []

    def note(self) -> None:
        """After each step: record the states of the tokens that it emitted."""
        for sequence, states in self._open.values():
            if len(sequence.output) == len(states) + 1:
                assert sequence.hidden is not None, "the engine gives them to a source that needs them"
                states.append(np.clip(sequence.hidden, -FLOAT16_LIMIT, FLOAT16_LIMIT).astype(np.float16))
                sequence.cancelled |= self._ends(int(sequence.output[-1]))
            assert len(sequence.output) == len(states), "each emitted token is recorded before the next one"

    def take(self, request_id: str) -> Recorded | None:
        """The record of an ended request, including its end token; None if it emitted no token."""
        sequence, states = self._open.pop(request_id)
        ends = [i for i, token in enumerate(sequence.output.tolist()) if self._ends(token)]
        length = ends[0] + 1 if ends else len(states)
        if not length:
            return None
        output = sequence.output[:length].copy()
        sampled = sequence.params.temperature > 0
        return Recorded(int(request_id), sampled, sequence.prompt.copy(), output, np.stack(states[:length]))


def collect(options: CollectOptions, console: Console, note: Callable[[int], None] = lambda _: None) -> int:
    """Collect until the folder holds the wanted tokens; returns their number. note: called with each count.

    Raises TrainingError or EngineError; shards written before stay, and a repeated call resumes from them.
    """
    first, step = options.part
    prompts = [prompt.text for prompt in read_prompts(options.prompts)][first::step]
    model = options.model or default_model_path()
    recorder = Recorder()
    config = _engine_config(options, model)
    engine = Engine(config, open_model(config), recorder)
    recorder.watch(engine.model.ends_generation)
    collection = Collection(options.out)
    collection.begin(
        Identity(
            model_sha256=sha256(Path(model)),
            prompts_sha256=hashlib.sha256("\0".join(prompts).encode()).hexdigest(),
            seed=options.seed,
            max_tokens=options.max_tokens,
            width=engine.model.width,
            vocab_size=engine.model.vocab_size,
        )
    )
    try:
        return _Run(options, prompts, engine, recorder, collection, console).run(note)
    finally:
        collection.close()


def _engine_config(options: CollectOptions, model: str) -> EngineConfig:
    try:
        return EngineConfig(
            model=model,
            slots=options.slots,
            kv_cells=options.kv_cells,
            threads=options.threads,
            gpu_layers=options.gpu_layers,
            prefix_cache_bytes=0,
        )
    except ValueError as error:
        raise CollectionError(str(error)) from error


class _Run:
    """The loop: keeps the engine full, takes ended requests, writes a shard every SHARD_TOKENS tokens."""

    def __init__(
        self,
        options: CollectOptions,
        prompts: list[str],
        engine: Engine,
        recorder: Recorder,
        collection: Collection,
        console: Console,
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._engine = engine
        self._recorder = recorder
        self._collection = collection
        self._console = console
        self._done, self._written = collection.done()
        self._buffer: list[Recorded] = []
        self._buffered = 0
        self._refused: set[int] = set()

    def run(self, note: Callable[[int], None]) -> int:
        wanted = self._options.tokens
        if self._done:
            say(self._console, f"going on: {self._written} of {wanted} tokens are there already")
        feed = self._requests()
        with Display(self._console, "tokens", wanted, self._written) as display:
            try:
                while self._written + self._buffered < wanted:
                    self._fill(feed)
                    report = self._engine.step()
                    self._recorder.note()
                    for ended in report.ended:
                        self._take(ended)
                    if self._buffered >= SHARD_TOKENS:
                        self._flush()
                    display.update(self._written + self._buffered, f"{len(self._done)} answers")
                    note(self._written + self._buffered)
            finally:
                self._flush()
        return self._written

    def _requests(self) -> Iterator[Request]:
        """Requests for all missing answers. Each further round over the prompts samples new answers."""
        number = 0
        while len(self._refused) < len(self._prompts):
            if number not in self._done and number % len(self._prompts) not in self._refused:
                yield self._request(number)
            number += 1
        raise CollectionError("no prompt can be run")

    def _request(self, number: int) -> Request:
        rng = Random(f"{self._options.seed}/{number}")
        greedy = number < len(self._prompts) and rng.random() < self._options.greedy_share
        sampling = SamplingParams(
            max_tokens=self._options.max_tokens,
            temperature=0.0 if greedy else rng.uniform(*SAMPLED_TEMPERATURE),
            top_p=1.0 if greedy else SAMPLED_TOP_P,
            seed=rng.randrange(SEED_LIMIT),
            ignore_eos=True,
        )
        return Request(id=str(number), prompt=self._prompts[number % len(self._prompts)], sampling=sampling)

    def _fill(self, feed: Iterator[Request]) -> None:
        scheduler = self._engine.scheduler
        while len(scheduler.running) + scheduler.waiting < self._options.slots + WAITING:
            request = next(feed)
            try:
                sequence = self._engine.prepare(request, time.monotonic())
            except RequestRefused as error:
                number = int(request.id) % len(self._prompts)
                self._refused.add(number)
                say(self._console, f"prompt {number} left out: {error.message}")
            else:
                self._recorder.open(sequence)
                self._engine.add(sequence)

    def _take(self, ended: Ended) -> None:
        recorded = self._recorder.take(ended.request_id)
        self._done.add(int(ended.request_id))
        if isinstance(ended.outcome, EngineError):
            raise ended.outcome
        if recorded is not None:
            self._buffer.append(recorded)
            self._buffered += len(recorded.output)

    def _flush(self) -> None:
        if self._buffer:
            self._collection.write(self._buffer)
            self._written += self._buffered
            self._buffer, self._buffered = [], 0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.collection.collect", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", help="GGUF path (default: the packaged model)")
    parser.add_argument("--prompts", type=Path, required=True, nargs="+", help="files with prompts")
    parser.add_argument("--out", type=Path, required=True, help="folder of the collected states")
    parser.add_argument("--tokens", type=int, default=DEFAULT_TOKENS)
    parser.add_argument("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slots", type=int, default=DEFAULT_SLOTS)
    parser.add_argument("--kv-cells", type=int, default=DEFAULT_KV_CELLS)
    parser.add_argument("--threads", type=int, default=0, help="0 is every core")
    parser.add_argument("--greedy-share", type=float, default=GREEDY_SHARE)
    options = vars(parser.parse_args())
    options["prompts"] = tuple(options["prompts"])
    console = Console(stderr=True)
    try:
        written = collect(CollectOptions(**options), console)
    except (TrainingError, EngineError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    print(f"{options['out']}: {written} tokens")


if __name__ == "__main__":
    main()
