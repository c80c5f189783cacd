"""The importance matrix, with which coarse number formats are quantised.

For each column of each matrix it holds the mean square of the activations while the model reads a text, since
an error in a weight is multiplied by them. Same definition as llama.cpp's llama-imatrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from common.processor import usable_cores
from engine.base.errors import ImportanceError, ModelLoadError
from engine.llama.context import DecodeError
from engine.llama.ggml_tensors import GgmlTensor, ProductWatcher, numbers_of
from engine.llama.log import first_log_line
from engine.llama.model import Model, Tokens, read_shape
from engine.weights.quantise import tensor_shapes

CHUNK = 512  # tokens read together, from an empty context: what llama.cpp takes
USUAL = 50_000  # tokens: a hundred chunks
LETTERS = 64  # characters of a token, at most on average


def importance_of(
    path: str,
    text: Path,
    *,
    threads: int = 0,
    gpu_layers: int = -1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Matrix name -> its columns' importance; that of a layer's experts in one array, one after the other.

    progress: chunks of the text done, and all of them. Tokens beyond the last whole chunk are left out.
    Raises ImportanceError for a text that does not serve, ModelLoadError or DecodeError for a model.
    """
    written = _read(text)
    seen = _Collector(tensor_shapes(path))
    model = Model(path, gpu_layers)
    chunk = min(CHUNK, model.trained_context or CHUNK)
    tokens = model.tokenize(written, add_bos=True, special=False)
    _check_length(text, len(tokens), chunk)
    count = len(tokens) // chunk
    first = llama_cpp.llama_vocab_bos(model.vocab) if llama_cpp.llama_vocab_get_add_bos(model.vocab) else None
    context = _context(model, chunk, threads or usable_cores(), seen)
    try:
        for k in range(count):
            part = tokens[k * chunk : (k + 1) * chunk].copy()
            if first is not None:
                part[0] = first  # as at the beginning of everything that the model reads
            status = _run(context, part)
            seen.check()
            if status != 0:
                raise DecodeError(status)
            if progress:
                progress(k + 1, count)
    finally:
        llama_cpp.llama_free(context)
    return seen.importance()


def check_text(path: str, text: Path) -> None:
    """Check that importance_of() accepts this text. Loads only the vocabulary, not the weights.

    Raises ImportanceError for the text, ModelLoadError for the model.
    """
    written = _read(text)
    model, chunk = Model(path, vocabulary_only=True), min(CHUNK, read_shape(path).trained_context or CHUNK)
    beginning = written[: chunk * LETTERS]  # nearly always enough; tokenizing a book takes seconds
    for part in (beginning, written):
        length = len(model.tokenize(part, add_bos=True, special=False))
        if length >= chunk:
            return
    _check_length(text, length, chunk)


def _check_length(text: Path, tokens: int, chunk: int) -> None:
    if tokens < chunk:
        raise ImportanceError(
            f"{text}: too short, {tokens} tokens: {chunk} are needed, and {USUAL} are usual"
        )


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ImportanceError(f"{text}: not UTF-8 at byte {error.start}: give a plain text") from error
    except OSError as error:
        raise ImportanceError(f"{text}: cannot be read: {error.strerror}") from error


def _context(model: Model, chunk: int, threads: int, seen: _Collector) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = chunk
    params.n_threads = params.n_threads_batch = threads
    # Every row is then an output: of the others, the last layer would compute no more than the attention.
    params.embeddings = True
    params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    params.cb_eval = seen.callback
    params.no_perf = True
    context = llama_cpp.llama_init_from_model(model.handle, params)
    if not context:
        raise ModelLoadError(f"{model.path}: no context of {chunk} cells: {first_log_line()}")
    return context


def _run(context: Any, tokens: Tokens) -> int:
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    pointer = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token))
    return int(llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(pointer, len(tokens))))


class _Collector(ProductWatcher):
    """Collects activations. shapes: of the tensors, as in the file."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._shapes = shapes
        self._sums: dict[str, NDArray[np.float64]] = {}  # of squares: [matrices, columns]
        self._rows: dict[str, NDArray[np.int64]] = {}  # that each matrix has met

    def importance(self) -> dict[str, NDArray[np.float32]]:
        """The result; all 1 for an expert that received no token. Raises ImportanceError."""
        found = {}
        for name, sums in self._sums.items():
            if not np.isfinite(sums).all():
                raise ImportanceError(
                    f"{name} meets numbers that are not finite: the model computes nonsense"
                )
            rows = self._rows[name][:, None]
            found[name] = np.where(rows, sums / np.maximum(rows, 1), 1).astype(np.float32).reshape(-1)
        return found

    def wants(self, name: str, product: GgmlTensor) -> bool:
        given = GgmlTensor.from_address(product.src[1])
        return name in self._shapes and given.type == llama_cpp.GGML_TYPE_F32

    def _check_shape(self, name: str, matrix: GgmlTensor) -> None:
        shape = self._shapes[name]
        if tuple(matrix.ne) != (*shape, *[1] * (4 - len(shape))):
            raise ImportanceError(f"{name} is {tuple(matrix.ne)} in llama.cpp, and {shape} in the file")

    def take(self, name: str, product: GgmlTensor, _address: int) -> None:
        matrix = GgmlTensor.from_address(product.src[0])
        self._check_shape(name, matrix)
        given = numbers_of(product.src[1], np.float32)
        columns, _, across, along = matrix.ne
        sums = self._sums.setdefault(name, np.zeros((across * along, columns)))
        rows = self._rows.setdefault(name, np.zeros(across * along, dtype=np.int64))

        def add(k: int, part: NDArray[np.float32]) -> None:
            sums[k] += np.einsum("ij,ij->j", part, part)
            rows[k] += len(part)

        if not self.routed(product):
            for i in range(given.shape[0]):
                for j in range(given.shape[1]):
                    add(i % along * across + j % across, given[i, j])
            return
        chosen = numbers_of(product.src[2], np.int32)[0, 0]  # [tokens, experts used]
        for expert in np.unique(chosen):
            token, slot = (chosen == expert).nonzero()
            add(int(expert), given[0, token, slot % given.shape[2]])
