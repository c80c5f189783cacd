"""Medusa and Hydra heads, run by ONNX Runtime.

Tianle Cai et al. 2024, https://arxiv.org/abs/2401.10774. From the state that gave token t, head i (from 0)
guesses token t + 1 + i: layers x + SiLU(W x + b), then an lm_head. The first layer of a Hydra head (Zachary
Ankner et al. 2024, https://arxiv.org/abs/2402.05109) reads the embeddings of token t and of the draft tokens
up to t + i, too. Names in files: engine/medusa/layouts.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from engine.medusa.calibration import RANKS
from engine.medusa.layouts import HeadsLoadError, first_line
from engine.medusa.onnx.format import HIDDEN, PATH, PROBABILITIES, TOKENS, WHICH_HEAD, WHICH_TOP, Sizes
from engine.medusa.weights import Floats, Ids, check_made_for

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
QUIET = 3  # ONNX Runtime's log level: errors alone


class OnnxHeads:
    """Heads ready to run. metadata: what the file's writer said. rows: tokens that they can guess.

    sees_path: whether a guess depends on the tokens before it.
    """

    def __init__(self, content: bytes, *, width: int, vocab_size: int, threads: int = 1) -> None:
        """content: of an ONNX file. Raises HeadsLoadError."""
        try:
            self._session = onnxruntime.InferenceSession(content, _options(threads), providers=_providers())
        except Exception as error:  # a class of its own for each kind of damage
            raise HeadsLoadError(f"cannot be read as ONNX: {first_line(error)}") from error
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        sizes = Sizes.from_metadata(self.metadata)
        check_made_for(width, vocab_size, hidden_size=sizes.width, vocabulary=sizes.vocab_size)
        self.heads, self.layers, self.rows = sizes.heads, sizes.layers, sizes.rows
        self.width, self.bits, self.sees_path = width, sizes.bits, bool(sizes.sees_path)
        self._numbers = [np.array(head, dtype=np.int64) for head in range(self.heads)]
        self._tops = [np.array([top], dtype=np.int64) for top in range(RANKS + 1)]
        self._check(vocab_size)

    @property
    def provider(self) -> str:
        """What runs them: cpu, or cuda."""
        return "cuda" if self._session.get_providers()[0] == CUDA else "cpu"

    def propose(
        self, hidden: Floats, heads: int, top: int, first: int = 0, path: Ids | None = None
    ) -> tuple[Ids, Floats]:
        """The `top` likeliest tokens of heads first..heads-1 for states [R, width], best first.

        path [R, heads]: the token that each state gave, and the draft tokens after it; for heads that see
        it. Token ids and probabilities, both [R, heads - first, top]; softmax is over the draft vocabulary.
        """
        if heads - first == 1:
            tokens, probabilities = self._run(hidden, first, top, path)
            return tokens[:, None], probabilities[:, None]
        each = [self._run(hidden, head, top, path) for head in range(self.heads)[first:heads]]
        return np.stack([t for t, _ in each], axis=1), np.stack([p for _, p in each], axis=1)

    def _run(self, hidden: Floats, head: int, top: int, path: Ids | None) -> tuple[Ids, Floats]:
        many = self._tops[top] if top < len(self._tops) else np.array([top], dtype=np.int64)
        feed = {HIDDEN: hidden, WHICH_HEAD: self._numbers[head], WHICH_TOP: many}
        if self.sees_path:
            assert path is not None, "these heads need it"
            feed[PATH] = path[:, : head + 1]
        tokens, probabilities = self._session.run((TOKENS, PROBABILITIES), feed)
        return tokens, probabilities

    def _check(self, vocab_size: int) -> None:
        """Run every head once, since the metadata may be wrong."""
        hidden = np.ones((2, self.width), dtype=np.float32)
        try:
            path = np.zeros((len(hidden), self.heads), dtype=np.int32)
            tokens, probabilities = self.propose(hidden, self.heads, RANKS, path=path)
        except Exception as error:
            raise HeadsLoadError(f"its heads do not run: {first_line(error)}") from error
        due = (len(hidden), self.heads, RANKS)
        if tokens.shape != due or probabilities.shape != due or tokens.dtype != np.int32:
            raise HeadsLoadError(f"its heads give {tokens.dtype} {tokens.shape} where int32 {due} is due")
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            raise HeadsLoadError(f"its heads guess tokens that the model's {vocab_size} have not")
        if not np.isfinite(probabilities).all():
            raise HeadsLoadError("holds values that are not finite")


def _options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # A thread that spins after its work takes the core that llama.cpp goes on with.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # rows differ in number, and an arena keeps room for the most
    options.log_severity_level = QUIET
    return options


def _providers() -> list[str]:
    return [name for name in (CUDA, CPU) if name in onnxruntime.get_available_providers()]
