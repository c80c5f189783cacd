"""Selects the number format in which weights are computed: the file's own, or unpacked to BF16.

Some formats have no fast kernel for several rows, neither ours nor llama.cpp's. Unpacked, such a model may be
faster on a CPU with BF16 instructions, and its outputs are closer to the exact ones: kernels of quantised
formats round activations to 8 bits. It takes more memory, and more
time where memory is slow; so both formats are timed, once for each model and machine. Until then a worker
serves the file's own format.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from common.llama_build import BuildDies, cache_folder, check_decodes
from engine.base.config import AS_SHIPPED, AUTO, BF16, FOR_THIS_MACHINE, TILE_ROWS, EngineConfig
from engine.base.errors import ModelLoadError
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.host.idle_time import Piece
from engine.host.measurement_cache import (
    cache_path,
    identity,
    machine,
    read_measurement,
    write_measurement,
)
from engine.host.other_load import OtherLoad
from engine.llama.context import Context, DecodeError
from engine.llama.model import Model, Shape, build, check_file, default_model_path, on_gpu
from engine.weights.quantise import requantise
from engine.weights.row_invariance import load_invariant
from engine.weights.saved_format import require_format

UNASKED_BYTES = 2 << 30  # larger unpacked weights need too much memory and disk for an automatic choice
BF16_BYTES = 2  # a weight
QUANTISED_BELOW = 1.9  # bytes a weight; files above hold 16 or 32 bits, and unpacking loses or gains nothing
PROMPT, OUTPUT = 256, 128  # tokens of the request by which formats are compared
PROMPT_ROWS = TILE_ROWS  # rows of the timed prefill call, for which an arriving request waits
UNPACKED_S = 0.25  # between two pieces: not one for each tensor, since a busy engine lends one a step
REPEATS = 3
REPEATED_S = 0.1  # a call is repeated that long: a short one may fall wholly into a burst of other load
GAIN = 1.1  # least speed-up that is worth the memory
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a call of one row, of a call with a row for each slot, and of one prompt token."""

    alone: float
    together: float
    prompt_token: float
    slots: int

    @property
    def request(self) -> float:
        """Seconds of one request's tokens while all slots are busy."""
        return PROMPT * self.prompt_token + OUTPUT * self.together / self.slots


def pays(shipped: Timing, bf16: Timing) -> bool:
    """Whether BF16 gains at least GAIN, and slows a lone request by no more than that gain."""
    gain, loss = shipped.request / bf16.request, bf16.alone / shipped.alone
    return gain >= GAIN and gain >= loss


def open_model(config: EngineConfig) -> Model:
    """Load the model in the configured format, or in the faster one, which is measured if not known.

    Raises ModelLoadError.
    """
    model, settled = open_at_once(config)
    return model if settled else faster(model, config)


def open_at_once(config: EngineConfig) -> tuple[Model, bool]:
    """Load it without measuring, and whether its format is settled: if not, faster() selects one.

    Raises ModelLoadError.
    """
    path = config.model or default_model_path()
    check_file(path)
    if config.weights == BF16:
        return _loaded(path, config, unpacked(path)), True
    if config.weights == FOR_THIS_MACHINE:
        return _chosen(path, config), True
    model = _loaded(path, config)
    if not _may_unpack(config, model.size, model.parameters):
        return model, True
    known = _known_faster(_key(path, config))
    if known == BF16 and _unpacked_path(path).exists():
        return faster(model, config), True
    return model, known == AS_SHIPPED


def faster(model: Model, config: EngineConfig, piece: Piece | None = None) -> Model:
    """This model in its file's format, or the same in BF16, whichever is faster.

    piece: entered around each timed call and each load of a model.
    """
    try:
        return _faster(model, config, piece)
    except (ModelLoadError, DecodeError) as error:
        log.warning("weights stay as they are in the file: %s", error.message)
        return model


def _chosen(path: str, config: EngineConfig) -> Model:
    choice = require_format(path)
    log.info("weights are computed as %s, chosen for this machine: %s", choice.type, choice.reason)
    return _loaded(path, config, choice.file, how="chosen for this machine")


def _loaded(path: str, config: EngineConfig, weights: str | None = None, how: str = "unpacked") -> Model:
    load = partial(Model, path, config.gpu_layers, weights, how)
    if not config.batch_invariant or on_gpu(config.gpu_layers):
        return load()
    return load_invariant(weights or path, lambda extra: load(extra_buffers=extra), config)


def unpacked(path: str, piece: Piece | None = None) -> str:
    """Path of the weights in BF16 in the cache folder, written if missing. Raises ModelLoadError.

    piece: writes in the background; what entering a piece raises stops that, and is raised.
    """
    target = _unpacked_path(path)
    if not target.exists():
        log.info("unpacking the weights of %s to BF16, once: %s", path, target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelLoadError(f"{target}: cannot be written: {error.strerror}") from error

        next_piece_s = 0.0

        def wait(_done: int, _of: int) -> None:
            nonlocal next_piece_s
            if piece and time.monotonic() >= next_piece_s:
                with piece():
                    pass
                next_piece_s = time.monotonic() + UNPACKED_S

        requantise(path, str(target), BF16, progress=wait, in_background=piece is not None)
    return str(target)


def _unpacked_path(path: str) -> Path:
    return cache_path("weights", identity(path), ".gguf")


def computed_bytes(config: EngineConfig, path: str, shape: Shape) -> int:
    """Bytes of the weights in the format that open_model() gives; of the larger one until that is measured.

    Raises ModelLoadError.
    """
    unpacked_bytes = shape.parameters * BF16_BYTES
    if config.weights == BF16:
        return unpacked_bytes
    if config.weights == FOR_THIS_MACHINE:
        file = require_format(path).file
        return Path(file).stat().st_size if file else shape.weight_bytes
    return shape.weight_bytes if selected_format(config, path, shape) == AS_SHIPPED else unpacked_bytes


def largest_bytes(config: EngineConfig, shape: Shape) -> int:
    """The same, of a model that is not here."""
    may = _may_unpack(config, shape.weight_bytes, shape.parameters)
    return shape.parameters * BF16_BYTES if may or config.weights == BF16 else shape.weight_bytes


def selected_format(config: EngineConfig, path: str, shape: Shape) -> str | None:
    """AS_SHIPPED or BF16 where the engine selects; None if that must be measured first."""
    if not _may_unpack(config, shape.weight_bytes, shape.parameters):
        return AS_SHIPPED
    return _known_faster(_key(path, config))


def speed_key(config: EngineConfig) -> str:
    """Names what the speed of this model depends on. Raises ModelLoadError for a file that cannot be read."""
    return _key(config.model or default_model_path(), config)


def known_speed(config: EngineConfig) -> Timing | None:
    """The measured times of the format in which the model runs; None if they are not known.

    Raises ModelLoadError for a file that cannot be read.
    """
    kept = read_measurement("formats", key := speed_key(config))
    faster = _known_faster(key)
    return None if faster is None else Timing(**kept[faster])


def _may_unpack(config: EngineConfig, size: int, parameters: int) -> bool:
    """Whether a model of this size in its file may be unpacked because that is faster."""
    # Batch-invariant results must not depend on measurements.
    if config.weights != AUTO or config.batch_invariant or on_gpu(config.gpu_layers):
        return False
    most = min(UNASKED_BYTES, _free_disk())
    return size < parameters * QUANTISED_BELOW and parameters * BF16_BYTES <= most


def _free_disk() -> int:
    folder = next(folder for folder in (cache_folder(), *cache_folder().parents) if folder.is_dir())
    return shutil.disk_usage(folder).free


def _faster(model: Model, config: EngineConfig, piece: Piece | None) -> Model:
    key = _key(model.path, config)
    known = _known_faster(key)
    if known == AS_SHIPPED:
        return model
    file, piece = unpacked(model.path, piece), piece or nullcontext
    try:
        with piece():
            check_decodes({**asdict(config), "model": file})
    except BuildDies as error:
        raise ModelLoadError(str(error)) from None
    with piece():
        other = Model(model.path, config.gpu_layers, file)
    if known == BF16:
        return other
    load = OtherLoad()
    shipped, bf16 = time_formats([model, other], config, piece)
    faster = BF16 if pays(shipped, bf16) else AS_SHIPPED
    log.info(
        "weights are computed %s: in BF16 %d rows take %.1f ms instead of %.1f, a prompt token %.2f "
        "instead of %.2f, one row %.1f instead of %.1f",
        "in BF16" if faster == BF16 else "as they are in the file",
        config.slots,
        *(s * 1e3 for s in (bf16.together, shipped.together, bf16.prompt_token, shipped.prompt_token)),
        *(s * 1e3 for s in (bf16.alone, shipped.alone)),
    )
    times = {AS_SHIPPED: asdict(shipped), BF16: asdict(bf16)}
    write_measurement("formats", key, times, load.share())
    return other if faster == BF16 else model


def _key(path: str, config: EngineConfig) -> str:
    """Cache key of the times of a model's formats."""
    return repr((identity(path), build(), machine(), config.threads, config.slots, config.kv_type))


def _known_faster(key: str) -> str | None:
    """The faster format by cached times; None if there are none, or they cannot be read."""
    kept = read_measurement("formats", key)
    try:
        return kept and (BF16 if pays(Timing(**kept[AS_SHIPPED]), Timing(**kept[BF16])) else AS_SHIPPED)
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def time_formats(models: list[Model], config: EngineConfig, piece: Piece = nullcontext) -> list[Timing]:
    """Time each model's calls, interleaved, so that other load affects all alike.

    piece: entered around each. Raises ModelLoadError or DecodeError.
    """
    calls = []
    for model in models:
        with piece():
            calls.append(calls_of(model, config))
    least = [[float("inf")] * len(calls[0]) for _ in models]
    for own in calls:
        for call in own:
            with piece():
                call()  # touches the weights and builds the graph
    for _ in range(REPEATS):
        for own, times in zip(calls, least, strict=True):
            for i, call in enumerate(own):
                with piece():
                    times[i] = min(times[i], _least_time(call))
    slots = config.slots
    return [Timing(one, many, prompt / PROMPT_ROWS, slots) for one, many, prompt in least]


def _least_time(call: Callable[[], None]) -> float:
    """Seconds of the fastest of the calls that fit into REPEATED_S, at least one."""
    began = time.perf_counter()
    call()
    now = time.perf_counter()
    least = now - began
    while now + least <= began + REPEATED_S:
        before = now
        call()
        now = time.perf_counter()
        least = min(least, now - before)
    return least


def calls_of(model: Model, config: EngineConfig) -> list[Callable[[], None]]:
    """One row, a row for each slot, and a prompt, each in an empty cache."""
    context = Context(
        model,
        cells=PROMPT_ROWS + config.slots,
        seq_ids=config.slots,
        max_rows=max(PROMPT_ROWS, config.slots),
        threads=config.threads,
        kv_type=config.kv_type,
    )

    def call(seq_ids: int, count: int = 1, output: bool = True) -> Callable[[], None]:
        rows = RowsBuilder()
        for seq_id in range(seq_ids):
            rows.add(seq_id, [token % model.vocab_size for token in range(count)], 0, EMPTY_DRAFT, output)
        built = rows.build()

        def run() -> None:
            context.decode(built)
            for seq_id in range(seq_ids):
                context.truncate(seq_id, 0)

        return run

    return [call(1), call(config.slots), call(1, PROMPT_ROWS, output=False)]
