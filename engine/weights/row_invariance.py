"""Loads a model for batch-invariant mode: so that no row of a decode call depends on how many there are.

llama.cpp's tiled kernels, for K- and I-quants from eight rows on, sum in another order than those for fewer.
So they take any number of rows here, also of an expert: a lone request is slower than with those for few,
while sixteen and prompts are faster. Of repacked weights some kernels (Q4_K, Q2_K) sum in another order where
they take four rows together: such a model is loaded as it is in its file. A lone row gets a companion, unless
our kernels compute all that depends on it. Whether all this suffices, on this processor and for this file, is
tried.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from engine.base.config import EngineConfig
from engine.base.errors import ImportanceError, ModelLoadError
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.host.measurement_cache import identity
from engine.llama.context import Context, DecodeError
from engine.llama.ggml_tensors import GgmlTensor, ProductWatcher, numbers_of
from engine.llama.kernels import attentions_computed
from engine.llama.model import Model, read_shape

TILED_KERNELS = "GGML_CPU_TILED_MM_FORCE"  # read by llama.cpp once, when it first needs to know
TOKEN = 5  # any
SEVERAL = 7  # rows: four together, and three
MANY = 39  # more than any kernel takes together, and again some that are left
_tried: dict[str, int | None] = {}  # in this process: differing_rows(), by all that it depends on
log = logging.getLogger(__name__)


def load_invariant(path: str, load: Callable[[bool], Model], config: EngineConfig) -> Model:
    """The model by load(extra_buffers), with repacked weights, and without companion rows, where that changes
    nothing.

    path: of the weights. Raises ModelLoadError for a model whose rows depend on how many there are: on this
    processor, or because this process has computed in another mode before, and so chosen other kernels.
    """
    for extra_buffers in (True, False):
        model = load(extra_buffers)
        for model.companion_row in (False, True):
            key = repr((identity(path), extra_buffers, model.companion_row, config.threads))
            if key not in _tried:
                try:
                    _tried[key] = differing_rows(model, config)
                except (DecodeError, ImportanceError) as error:
                    raise ModelLoadError(
                        f"{path}: cannot be tried for batch_invariant: {error.message}"
                    ) from error
            rows = _tried[key]
            if rows is None:
                return model
        log.info("%s: llama.cpp's repacked weights are not used, since they make %d rows differ", path, rows)
        description = model.description
        del model  # before it is loaded again: both at once may be more memory than there is
    raise ModelLoadError(
        f"{path}: not for batch_invariant: of {description}, llama.cpp here computes {rows} rows in another "
        "way than one: take another number format, turn batch_invariant off, or, after engines without it in "
        "this process, start another"
    )


def differing_rows(model: Model, config: EngineConfig) -> int | None:
    """The smallest tried number of rows for which a product with a matrix is not that of a lone row, to the
    bit; None if there is none. Without companion rows also 1, if llama.cpp computes attention of a layer,
    which sums in another order for a lone row over many cells.

    Raises ModelLoadError or DecodeError, and ImportanceError where products cannot be watched.
    """
    sequences = MANY if model.can_share_prefixes else config.slots  # states of recurrent ones are large
    products, layers = _Products(), read_shape(model.path).layers
    with _tiled_kernels():
        context = Context(
            model,
            cells=MANY,
            seq_ids=sequences,
            max_rows=MANY,
            threads=config.threads,
            companion_row=model.companion_row,
            watcher=products,
        )
        try:
            several, many = (min(count, sequences) for count in (SEVERAL, MANY))
            for count, length in ((1, 1), (several, 1), (many, 1), (1, MANY)):
                products.alike = length == 1
                before = attentions_computed()
                _decode(context, count, length)
                products.check()
                if not model.companion_row and attentions_computed() - before < layers:
                    return 1
                if products.differ:
                    return count * length
            return None
        finally:
            context.close()


def _decode(context: Context, sequences: int, length: int) -> None:
    rows = RowsBuilder()
    for seq_id in range(sequences):
        rows.add(seq_id, [TOKEN], 0, EMPTY_DRAFT)  # whose output is compared
        if length > 1:
            rows.add(seq_id, [TOKEN] * (length - 1), 1, EMPTY_DRAFT, output=False)
    context.decode(rows.build())
    for seq_id in range(sequences):
        context.truncate(seq_id, 0)


class _Products(ProductWatcher):
    """Compares each matrix's product to that of the first call's first row.

    alike: whether the rows of a call are all the same, and so compared; else the first is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alone: dict[str, NDArray[np.uint32]] = {}
        self.alike, self.differ = True, False

    def wants(self, name: str, _product: GgmlTensor) -> bool:
        return name.endswith(".weight")

    def take(self, name: str, product: GgmlTensor, address: int) -> None:
        bits = numbers_of(address, np.uint32)
        rows = bits[0] if self.routed(product) else bits.reshape(-1, bits.shape[-1])
        alone = self._alone.setdefault(name, rows[0].copy())
        self.differ |= bool((rows[: None if self.alike else 1] != alone).any())


@contextmanager
def _tiled_kernels() -> Iterator[None]:
    """Not for processes that this one starts, in which other modes may run."""
    before = os.environ.get(TILED_KERNELS)
    os.environ[TILED_KERNELS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TILED_KERNELS]
        else:
            os.environ[TILED_KERNELS] = before
