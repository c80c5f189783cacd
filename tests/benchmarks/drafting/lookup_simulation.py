"""What drafting by lookup gains on this machine, and which term of its cost takes how much of that.

    python -m tests.benchmarks.drafting.lookup_simulation --prompts spec_bench_dev.jsonl --model q4_0.gguf

Plain greedy answers are decoded once. Then the policy decides over them again, one request at a time and
without the model, in a clock that goes by T(n) as measured here: with all terms, and without each in turn.
The last line is what no policy can pass: it knows at each step how many of the copied tokens are right.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine import Completion, EngineConfig, Request, SamplingParams
from engine.core.engine import Engine
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree
from engine.llama.model import default_model_path
from engine.speculative import latency_model
from engine.speculative.controller import Speculation
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.prompt_lookup import MAX_DRAFTS, LookupIndex, LookupSource
from engine.speculative.row_timer import row_timer
from tests.benchmarks import common
from tests.engine.helpers.drive import opened
from tests.support.measuring.profiles import FixedProfile
from tests.support.measuring.report import Report, add_record, shown_command

ORDERS = 4  # what is learned from one request counts for the next, so their order matters
RESTING_S, ASKED_S, DRAFTED_S = 12e-6, 90e-6, 200e-6  # Python of a step, by what is done; on two slow cores
FEW_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24)
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt, and what the model says to it."""

    prompt: Tokens
    output: Tokens


class Lookup(LookupSource):
    """Says whether it was asked."""

    asked = False

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        self.asked = True
        return super().draft(sequences, limit)


def answers(engine: Engine, prompts: Iterable[str], max_tokens: int) -> list[Answer]:
    """All of them, decoded plainly."""
    encoded = {}
    for i, prompt in enumerate(prompts):
        request = Request(id=str(i), prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens))
        sequence = engine.prepare(request, time.monotonic())
        encoded[request.id] = sequence.prompt
        engine.add(sequence)
    outputs = {}
    while not engine.idle:
        for ended in engine.step().ended:
            assert isinstance(ended.outcome, Completion), ended.outcome
            outputs[ended.request_id] = np.array(ended.outcome.tokens, dtype=np.int32)
    return [Answer(encoded[i], outputs[i]) for i in encoded if len(outputs[i]) > 2]


def ratio(profile: LatencyProfile, replies: list[Answer], *, python: bool = True) -> float:
    """Speed of drafted decoding by that of plain decoding."""
    took = plain = 0.0
    for seed in range(ORDERS):
        source = Lookup()
        speculation = Speculation(profile, [source])
        for reply in random.Random(seed).sample(replies, len(replies)):
            a, b = _replay(speculation, source, reply, python)
            took, plain = took + a, plain + b
    return plain / took


def _replay(speculation: Speculation, source: Lookup, reply: Answer, python: bool) -> tuple[float, float]:
    """Seconds with drafts, and without."""
    profile, took, plain = speculation.profile, 0.0, 0.0
    request = Request(id="-", prompt="-", sampling=SamplingParams(max_tokens=len(reply.output)))
    sequence = SequenceState(request, reply.prompt, arrived=0.0)
    sequence.tokens[sequence.length :] = reply.output
    sequence.length += 1  # prefill gives the first token
    while sequence.remaining:
        source.asked = False
        [tree] = speculation.draft([sequence], sequence.remaining - 1)
        rows, right = 1 + len(tree), 0
        while right < len(tree) and tree[right].token == sequence.tokens[sequence.length + right]:
            right += 1
        took += profile.next_call(rows)
        took += python * (DRAFTED_S if tree else ASKED_S if source.asked else RESTING_S)
        plain += profile.seconds(1) * (1 + right)
        speculation.observe_latency(rows, 0.0)
        if tree:
            speculation.observe(sequence, tree, list(range(right)))
        sequence.length += 1 + right
    return took, plain


def ceiling(profile: LatencyProfile, replies: Iterable[Answer]) -> float:
    """The ratio of a policy that knows how many of the tokens after the longest match are right."""
    took = plain = 0.0
    for reply in replies:
        copies, length = _right_copies(reply), len(reply.output)
        profile.context = len(reply.prompt) + length / 2
        calls = [profile.seconds(rows) for rows in range(1, MAX_DRAFTS + 2)]
        # least[emitted][drafts of the last call]: seconds; prefill gives the first token
        least: list[dict[int, float]] = [{} for _ in range(length + 1)]
        least[1][0] = 0.0
        for emitted in range(1, length):
            for last, seconds in least[emitted].items():
                for drafts in range(min(copies[emitted], length - emitted - 1) + 1):
                    python = DRAFTED_S if drafts else RESTING_S
                    spent = seconds + calls[drafts] + python + (profile.switch if drafts != last else 0.0)
                    after = least[emitted + 1 + drafts]
                    after[drafts] = min(after.get(drafts, spent), spent)
        took += min(least[length].values())
        plain += (length - 1) * calls[0]
    return plain / took


def _right_copies(reply: Answer) -> list[int]:
    """How many tokens after the longest match come again, at each place of the output."""
    tokens, index, copies = [*reply.prompt.tolist(), *reply.output.tolist()], LookupIndex(), []
    for place in range(len(reply.prompt), len(tokens)):
        index.extend(tokens[len(index.tokens) : place])
        match, copied, _ = index.longest_match()
        right = 0
        while match and right < MAX_DRAFTS and place + right < len(tokens):
            if tokens[copied + right] != tokens[place + right]:
                break
            right += 1
        copies.append(right)
    return copies


def main() -> None:
    parser = common.parser(__doc__)
    add_record(parser)
    options = parser.parse_args()
    prompts = common.load_spec_bench(options.prompts, options.limit)
    model: Path = options.model or Path(default_model_path())
    config = EngineConfig(model=str(model))
    engine = opened(config)
    with row_timer(engine.model, config) as timer:
        measured = latency_model.measure(timer, FEW_ROWS)
    replies = answers(engine, prompts, options.max_tokens)
    points, switch, attention = measured.points, measured.switch_s, measured.row_cell_s
    relative = ", ".join(f"{rows}: {seconds / points[1]:.2f}" for rows, seconds in points.items())
    free = dict.fromkeys(FEW_ROWS, points[1])
    report = Report(
        shown_command("tests.benchmarks.drafting.lookup_simulation", sys.argv[1:]),
        options.record,
        model.name,
    )
    with report.table("lookup-simulation", "simulated", "ratio at one request") as table:
        for name, value in (
            ("as it is", ratio(FixedProfile(points, switch, attention), replies)),
            ("without Python's time", ratio(FixedProfile(points, switch, attention), replies, python=False)),
            ("without changes of shape", ratio(FixedProfile(points, 0.0, attention), replies)),
            ("without attention's time a row", ratio(FixedProfile(points, switch, 0.0), replies)),
            ("without all three", ratio(FixedProfile(points), replies, python=False)),
            ("if more rows took no longer", ratio(FixedProfile(free), replies, python=False)),
            ("if it knew which copies are right", ceiling(FixedProfile(points, switch, attention), replies)),
        ):
            table.row(name, f"{value:.2f}")
        table.note(
            f"T(1) is {points[1] * 1e3:.2f} ms, T(n)/T(1) of n rows {relative}; a change of shape takes "
            f"{switch * 1e3:.2f} ms, attention {attention * 1e6:.2f} us a row and cell. Python is taken to "
            f"add {RESTING_S * 1e3:.2f} ms to a plain step, {ASKED_S * 1e3:.2f} where a source was asked and "
            f"{DRAFTED_S * 1e3:.2f} where something was drafted."
        )


if __name__ == "__main__":
    main()
