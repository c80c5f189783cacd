"""A llama.cpp context: rows in, logits out, and the operations on its KV cache.

Rows go in as numpy arrays, logits come out as a numpy view. Nothing here knows what a request is.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from common.processor import usable_cores
from engine.base.errors import EngineError, ModelLoadError
from engine.llama.ggml_tensors import ProductWatcher
from engine.llama.log import first_log_line
from engine.llama.model import Model, Tokens
from engine.llama.saved_cells import SavedCells

Logits = NDArray[np.float32]
Hidden = NDArray[np.float32]

CELL_PADDING = 256  # llama.cpp rounds the cache up to this many cells
NO_SLOT = 1  # status of llama_decode: no free cells
KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "f32": llama_cpp.GGML_TYPE_F32}


def padded(cells: int) -> int:
    """Cells to allocate for so many tokens and the companion row."""
    return -(-(cells + 1) // CELL_PADDING) * CELL_PADDING


class DecodeError(EngineError):
    """llama_decode returned an error; `status` is its value."""

    def __init__(self, status: int) -> None:
        super().__init__(f"llama_decode failed with status {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one llama_decode call: equal-length arrays, one entry a token."""

    tokens: Tokens
    positions: Tokens
    seq_ids: Tokens
    outputs: NDArray[np.int8]  # 1 for rows that give logits
    further_ids: Mapping[int, list[int]] = field(default_factory=dict)  # row -> ids beyond its first


class Outputs(NamedTuple):
    """llama.cpp's outputs for the rows with Rows.outputs set, in order; mostly views of its buffers, so valid
    until the next call.

    logits [rows, vocab]; hidden [rows, width], the states after the final norm, None unless requested.
    """

    logits: Logits
    hidden: Hidden | None

    def split(self, sizes: Sequence[int]) -> list[Outputs]:
        """Parts of so many rows each."""
        parts, first = [], 0
        for size in sizes:
            rows = slice(first, first + size)
            parts.append(Outputs(self.logits[rows], None if self.hidden is None else self.hidden[rows]))
            first += size
        return parts


class Context:
    """One context of a model, for the sequences 0 to `seq_ids` - 1.

    They share a KV cache of `cells`; with streams, each has its own of so many.
    """

    def __init__(
        self,
        model: Model,
        *,
        cells: int,
        seq_ids: int,
        max_rows: int,
        threads: int = 0,
        kv_type: str = "f16",
        companion_row: bool = False,
        streams: bool = False,
        watcher: ProductWatcher | None = None,
    ) -> None:
        """companion_row: add a second row, or a second output, to calls with only one, and drop its result:
        CPU kernels for one row sum in another order than those for several. streams: calls are
        fast only if their rows are of consecutive sequences and equally many of each, and no row has
        further_ids. watcher: of every call, which is slow. Raises ModelLoadError.
        """
        self._vocab_size, self._width = model.vocab_size, model.width
        self._gives_hidden = False
        self._companion_row = companion_row
        self._streams = seq_ids if streams else 1
        self._scratch_id = None if streams else seq_ids  # of the companion row
        self.cells = padded(cells)
        params = self._params(
            seq_ids + (not streams), max(max_rows, seq_ids + 1), threads or usable_cores(), kv_type
        )
        if watcher:
            params.cb_eval = watcher.callback
        self._ctx = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._ctx:
            raise ModelLoadError(f"{model.path}: no context of {self.cells} cells: {first_log_line()}")
        self._free = weakref.finalize(self, _free, self._ctx, model)
        self._free.atexit = False
        self._memory = llama_cpp.llama_get_memory(self._ctx)
        self._batch, self._buffers = _new_batch(max_rows + 1, seq_ids)
        self._views: dict[tuple[int, int, int], NDArray[np.float32]] = {}  # by address, rows, columns

    def close(self) -> None:
        """Give its memory back now; nothing else may be called after that."""
        self._free()

    def _params(self, seq_ids: int, max_rows: int, threads: int, kv_type: str) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.cells * self._streams
        params.n_batch = params.n_ubatch = max_rows
        params.n_seq_max = seq_ids
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.kv_unified = self._streams == 1
        params.swa_full = True
        # Flash attention casts an F32 cache to F16, so full precision means going without it.
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
            if kv_type == "f32"
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        )
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
        params.no_perf = True
        return params

    # The forward pass

    def decode(self, rows: Rows, hidden: bool = False) -> Outputs:
        """Run llama_decode, to its end on a device too. hidden: also return hidden states; llama.cpp then
        computes the logits of every row.

        Raises DecodeError; the caller must then remove every sequence that had a row.
        """
        n = len(rows.tokens)
        wanted = rows.outputs.nonzero()[0]
        buffers = self._buffers
        buffers.tokens[:n] = rows.tokens
        buffers.positions[:n] = rows.positions
        buffers.seq_ids[:n, 0] = rows.seq_ids
        buffers.id_counts.fill(1)
        for row, ids in rows.further_ids.items():
            buffers.id_counts[row] = 1 + len(ids)
            buffers.seq_ids[row, 1 : 1 + len(ids)] = ids
        buffers.outputs[:n] = 1 if hidden else rows.outputs
        count, chosen = (n, _slice_of(wanted)) if hidden else (len(wanted), slice(None))
        lone_row = self._companion_row and n == 1
        if lone_row:
            # Of another sequence, since a recurrent one cannot drop it again; there is none in a stream.
            companion = (
                (int(rows.seq_ids[0]), int(rows.positions[0]) + 1)
                if self._scratch_id is None
                else (self._scratch_id, 0)
            )
            buffers.tokens[1], buffers.outputs[1] = rows.tokens[0], hidden
            buffers.seq_ids[1, 0], buffers.positions[1] = companion
            count += hidden
        if self._companion_row and count == 1:
            other = int(wanted[0] == 0)
            buffers.outputs[other] = 1
            count, chosen = 2, slice(1 - other, 2 - other)
        self._batch.n_tokens = n + lone_row
        if hidden != self._gives_hidden:
            llama_cpp.llama_set_embeddings(self._ctx, hidden)
            self._gives_hidden = hidden
        status = llama_cpp.llama_decode(self._ctx, self._batch)
        if lone_row:
            self.truncate(*companion)
        if status != 0:
            raise DecodeError(status)
        if not count:  # nothing is read that would wait for a device, whose time would be the next call's
            llama_cpp.llama_synchronize(self._ctx)
        logits = self._floats(llama_cpp.llama_get_logits, count, self._vocab_size)[chosen]
        if not hidden:
            return Outputs(logits, None)
        return Outputs(logits, self._floats(llama_cpp.llama_get_embeddings, count, self._width)[chosen])

    def _floats(self, getter: Any, rows: int, columns: int) -> NDArray[np.float32]:
        """A view of llama.cpp's own memory. Cached, since making a view takes longer than using it."""
        if not rows:
            return np.empty((0, columns), dtype=np.float32)
        pointer = getter(self._ctx)
        key = ctypes.addressof(pointer.contents), rows, columns
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = np.ctypeslib.as_array(pointer, shape=(rows, columns))
        return view

    # The KV cache

    def share(self, source: int, target: int, length: int) -> None:
        """Give the first `length` cells of source to target too. Copies nothing."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def share_range(self, source: int, target: int, first: int, end: int) -> None:
        """Give the cells of source at positions first..end-1 to target too."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, first, end)

    def truncate(self, seq_id: int, length: int) -> None:
        """Keep the first `length` positions of a sequence."""
        llama_cpp.llama_memory_seq_rm(self._memory, seq_id, length, -1)

    def copy_stream(self, source: int, target: int) -> None:
        """Copy all cells of source's stream into that of target, whose cells are lost."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def positions(self, seq_id: int) -> tuple[int, int]:
        """First and last position held by a sequence; (-1, -1) when it holds none."""
        first = llama_cpp.llama_memory_seq_pos_min(self._memory, seq_id)
        return first, llama_cpp.llama_memory_seq_pos_max(self._memory, seq_id)

    def save(self, seq_id: int) -> SavedCells:
        """Copy a sequence's cells out of the context."""
        state = np.empty(llama_cpp.llama_state_seq_get_size(self._ctx, seq_id), dtype=np.uint8)
        written = llama_cpp.llama_state_seq_get_data(self._ctx, _bytes(state), len(state), seq_id)
        assert written == len(state), "llama.cpp writes as much as it says"
        return SavedCells(state, self._streams, seq_id if self._streams > 1 else 0)

    def restore(self, saved: SavedCells, seq_id: int) -> None:
        """Give a sequence the saved cells in place of its own. Raises DecodeError when they do not fit."""
        data = saved.for_streams(self._streams)
        read = llama_cpp.llama_state_seq_set_data(self._ctx, _bytes(data), len(data), seq_id)
        if read != len(data):
            self.truncate(seq_id, 0)
            raise DecodeError(NO_SLOT)


def _free(ctx: Any, _model: Model) -> None:
    """The finalizer of a context; its second argument keeps the model alive until then."""
    llama_cpp.llama_free(ctx)


def _slice_of(indices: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Consecutive indices as a slice, which selects without a copy."""
    if len(indices) and indices[-1] - indices[0] == len(indices) - 1:
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def _bytes(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


@dataclass(frozen=True, slots=True)
class _Buffers:
    tokens: Tokens
    positions: Tokens
    seq_ids: Tokens
    outputs: NDArray[np.int8]
    id_counts: Tokens
    id_pointers: NDArray[np.uint64]


def _new_batch(rows: int, ids_per_row: int) -> tuple[Any, _Buffers]:
    """A llama_batch over numpy memory; the buffers must outlive it."""
    ids = np.zeros((rows, ids_per_row), dtype=np.int32)
    buffers = _Buffers(
        tokens=np.zeros(rows, dtype=np.int32),
        positions=np.zeros(rows, dtype=np.int32),
        seq_ids=ids,
        outputs=np.zeros(rows, dtype=np.int8),
        id_counts=np.ones(rows, dtype=np.int32),
        id_pointers=ids.ctypes.data + np.arange(rows, dtype=np.uint64) * ids.strides[0],
    )
    batch = llama_cpp.llama_batch(
        n_tokens=0,
        token=buffers.tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
        embd=None,
        pos=buffers.positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
        n_seq_id=buffers.id_counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
        seq_id=buffers.id_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        logits=buffers.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
    )
    return batch, buffers
