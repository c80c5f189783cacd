"""What a listener is told of drafts: exactly the characters that accepted draft tokens gave."""

from __future__ import annotations

import time

import pytest

from engine import TextDelta
from engine.serving.text_listener import Listener
from tests.engine.helpers.drive import completions, fresh, request, run
from tests.engine.helpers.known_drafts import Scripted


@pytest.mark.parametrize("stop", [(), ("ab",)])
def test_the_accepted_tokens_are_marked(tiny_gguf: str, stop: tuple[str, ...]) -> None:
    asked = request("r", "cabbage", max_tokens=40, stop=stop)
    plain = completions(run(fresh(tiny_gguf), [asked]))["r"]
    engine = fresh(tiny_gguf)
    engine.set_draft_source(Scripted({"r": plain.tokens}, [(2, 1)], 300))
    sequence = engine.prepare(asked, time.monotonic())
    told: list[TextDelta] = []
    listener = Listener(sequence, told.append)
    engine.add(sequence)
    while not engine.idle:
        engine.step()
        listener.deliver()
    listener.deliver(final=True)
    text = "".join(delta.text for delta in told)
    assert text == plain.text
    marked, at = set(), 0
    for delta in told:
        for start, end, source in delta.drafts:
            assert source == "scripted"
            assert 0 <= start < end <= len(delta.text)
            marked |= set(range(at + start, at + end))
        at += len(delta.text)
    expected, at = set(), 0
    for number, part in enumerate(sequence.text.parts):
        if number in sequence.sources:
            expected |= set(range(at, min(at + len(part), len(text))))
        at += len(part)
    assert marked == expected
    accepted = sequence.completion(time.monotonic()).drafted["scripted"].accepted
    assert len(sequence.sources) == accepted > 5
