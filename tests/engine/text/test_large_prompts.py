"""Prompts of megabytes: one that cannot fit is refused unread, and large ones are read one at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine import Request, RequestRefused, SamplingParams
from engine.llama.model import Model, Tokens, default_model_path
from engine.text.prompt_encoder import LARGE, SPACES, PromptEncoder

CONTEXT = 2048


class Watched(Model):
    """Notes how many large texts are read at the same time, and all that are read."""

    def __init__(self) -> None:
        super().__init__(default_model_path())
        self.read = 0
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()

    def tokenize(self, text: str, *, add_bos: bool, special: bool) -> Tokens:
        large = len(text) > LARGE
        with self._lock:
            self.read += 1
            self._now += large
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            return super().tokenize(text, add_bos=add_bos, special=special)
        finally:
            with self._lock:
                self._now -= large


@pytest.fixture(scope="module")
def model() -> Watched:
    return Watched()


@pytest.fixture
def encoder(model: Watched) -> PromptEncoder:
    return PromptEncoder(model, most_tokens=CONTEXT)


def prompt(text: str, raw: bool = False) -> Request:
    return Request(id="r", sampling=SamplingParams(), prompt=text, raw=raw)


@pytest.mark.parametrize("raw", [False, True])
def test_what_can_never_fit_is_refused_unread(model: Watched, encoder: PromptEncoder, raw: bool) -> None:
    before = model.read
    with pytest.raises(RequestRefused, match=r"at least \d+ tokens, over the context of 2048") as caught:
        encoder.encode(prompt("x" * 4_000_000, raw))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    messages = ({"role": "user", "content": "y " * 2_000_000},)
    with pytest.raises(RequestRefused) as caught:
        encoder.encode(Request(id="r", sampling=SamplingParams(), messages=messages))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert model.read == before


@pytest.mark.slow
def test_nothing_is_refused_that_might_fit(model: Watched) -> None:
    """The longest token there is, over and over, takes as few tokens as a text of that size can."""
    pieces = [model.piece(token, special=True) for token in range(model.vocab_size)]
    longest = max(pieces, key=len)
    assert len(longest) == model.longest_piece
    texts = [
        longest.decode() * (2 * LARGE // len(longest)),
        " " * 70_000,
        "<|im_end|>" * 7000,
        "é\n" * 33_000,
    ]
    for text in texts:
        count = len(model.tokenize(text, add_bos=False, special=True))
        seen = len(text) - sum(map(text.count, SPACES))
        assert count * len(longest) >= seen
        assert len(PromptEncoder(model, most_tokens=count + 1).encode(prompt(text, raw=True))) <= count + 1


def test_large_ones_are_read_one_at_a_time(model: Watched) -> None:
    encoder = PromptEncoder(model)
    model.most_at_once = 0
    with ThreadPoolExecutor(8) as threads:
        large = [threads.submit(encoder.encode, prompt("hello world " * 20_000, raw=True)) for _ in range(6)]
        small = [threads.submit(encoder.encode, prompt("hello", raw=True)) for _ in range(20)]
        assert {len(one.result()) for one in small} == {1}
        assert len({len(one.result()) for one in large}) == 1
    assert model.most_at_once == 1
