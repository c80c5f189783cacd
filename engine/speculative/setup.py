"""Sets up the draft sources of an engine. A new source is added here only."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from common.processor import usable_cores
from engine.base.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.host.idle_time import Piece
from engine.host.measurement_cache import machine
from engine.llama.model import Model, build
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.medusa.model_rows import FINGERPRINT, ModelRows, fingerprint
from engine.speculative import latency_model
from engine.speculative.controller import Speculation
from engine.speculative.grammar_source import GrammarSource
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.row_timer import largest_timed, row_timer
from engine.speculative.static_tree import StaticTrees

if TYPE_CHECKING:
    from safetensors import safe_open

    from engine.medusa.onnx.heads import OnnxHeads

SHIPPED = Path(__file__).parents[1] / "medusa" / "trained"  # heads that come with the package
log = logging.getLogger(__name__)


# T(n) before it is measured: a row costs as much as a call, so that forced trees are small.
UNKNOWN = {1: 1.0, 2: 2.0}


def speculate(engine: Engine, config: EngineConfig) -> None:
    """Give the engine a Speculation over all available sources, with a measured latency profile.

    Raises HeadsLoadError for heads named in the config, and ModelLoadError without memory to measure. The
    model must not be recurrent, since rejected drafts are rewound.
    """
    drafting = Drafting(engine.model, config)
    drafting.start(engine, drafting.measure(engine.model))


class Drafting:
    """All available draft sources of one model, and its latency profiles."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        """Raises HeadsLoadError for heads named in the config."""
        self._config = config
        self._sources: list[DraftSource] = [GrammarSource(), LookupSource()]
        self._forced: StaticTrees | None = None
        if heads := _heads(model, config):
            self._sources.append(source := HeadSource(heads))
            log.info("%d draft heads are run by ONNX Runtime (%s)", heads.heads, heads.provider)
            self._forced = StaticTrees(source)
        self._names = tuple(source.name for source in self._sources)
        self._rows = [n for n in latency_model.ROWS if n <= largest_timed(config)]

    def cached(self, model: Model) -> LatencyProfile | None:
        """The profile of these weights, None if it was not measured yet."""
        return latency_model.cached_profile(_key(model, self._config), self._rows)

    def measure(self, model: Model, piece: Piece = nullcontext) -> LatencyProfile:
        """The profile of these weights, measured if not cached. piece: see row_timer().

        Raises ModelLoadError or DecodeError.
        """
        timer = row_timer(model, self._config, piece)
        return latency_model.measure_once(_key(model, self._config), timer, self._rows)

    def start(self, engine: Engine, profile: LatencyProfile | None) -> None:
        """Give the idle engine a Speculation. Without a profile it drafts for decoding "medusa" alone."""
        if profile is None:
            engine.set_draft_source(Speculation(LatencyProfile(UNKNOWN), (), self._forced), self._names)
            log.info("drafts from %s, once T(n) is measured", ", ".join(self._names))
            return
        engine.set_draft_source(Speculation(profile, self._sources, self._forced), self._names)
        log.info(
            "drafts from %s; a call of 1, 2, 4, 8 rows takes %s ms",
            ", ".join(self._names),
            ", ".join(f"{profile.seconds(n) * 1e3:.1f}" for n in (1, 2, 4, 8)),
        )


def _heads(model: Model, config: EngineConfig) -> OnnxHeads | None:
    if config.heads is not None:
        return _load(config.heads, model, config)
    try:
        path = shipped_heads(model.path)
        return _load(str(path), model, config) if path else None
    except HeadsLoadError as error:
        log.warning("no draft heads: %s", error.message)
        return None


def shipped_heads(model: str) -> Path | None:
    """The packaged heads file for this model, in whatever number format it is. Raises HeadsLoadError."""
    files = sorted(SHIPPED.glob("*.safetensors"))
    if not files:
        return None
    own = fingerprint(model)
    return next((path for path in files if _metadata(path).get(FINGERPRINT) == own), None)


def shipped_for_width(width: int) -> list[Path]:
    """Packaged heads files for models of this width, without reading the model. Raises HeadsLoadError."""
    return [path for path in sorted(SHIPPED.glob("*.safetensors")) if _width(path) == width]


def _width(path: Path) -> int:
    with _opened(path) as file:
        shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118
    return int(min(min(shape) for shape in shapes if len(shape) > 1))


def _metadata(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        return file.metadata() or {}


def _opened(path: Path) -> safe_open:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise HeadsLoadError("draft heads need safetensors: pip install 'medusaq[medusa]'") from error
    return safe_open(path, framework="numpy")


def _load(path: str, model: Model, config: EngineConfig) -> OnnxHeads:
    heads = load_heads(
        path,
        width=model.width,
        vocab_size=model.vocab_size,
        model_rows=ModelRows(model.path),
        threads=config.threads or usable_cores(),
    )
    made_for = heads.metadata.get(FINGERPRINT)
    if made_for is not None and made_for != fingerprint(model.path):
        log.warning(
            "%s: trained for another model than %s; what they guess may be of no use", path, model.path
        )
    return heads


def _key(model: Model, config: EngineConfig) -> str:
    """The cache key of T(n): everything that it depends on."""
    file = Path(model.path)
    stat = file.stat()
    parts = (file.name, stat.st_size, stat.st_mtime_ns, model.description, build(), machine())
    return repr((*parts, config.threads, config.gpu_layers, config.kv_type, config.batch_invariant))
