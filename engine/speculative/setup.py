"""Which draft sources an engine has. A new one is added here, and nowhere else."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from engine.base.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.host.idle_time import Piece
from engine.host.measurement_cache import machine
from engine.llama.context import usable_cores
from engine.llama.model import Model, build
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.lm_head import FINGERPRINT, fingerprint, lm_head_rows
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.speculative import latency_model
from engine.speculative.controller import Speculation
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.row_timer import largest_timed, row_timer
from engine.speculative.static_tree import StaticTrees

if TYPE_CHECKING:
    from safetensors import safe_open

    from engine.medusa.onnx.heads import OnnxHeads

SHIPPED = Path(__file__).parents[1] / "medusa" / "trained"  # heads that come with the package
log = logging.getLogger(__name__)


# Before T(n) is known: with rows that take a whole call each no draft pays, and forced trees are small.
UNKNOWN = {1: 1.0, 2: 2.0}


def speculate(engine: Engine, config: EngineConfig) -> None:
    """Let the engine draft from all its sources where that pays, by T(n), which is measured if need be.

    Raises HeadsLoadError for given heads, and ModelLoadError when there is no memory to measure in. The model
    must be able to forget its last tokens.
    """
    drafting = Drafting(engine.model, config)
    drafting.begin(engine, drafting.measure(engine.model))


class Drafting:
    """The sources for one model, and how long its calls take."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        """Raises HeadsLoadError for given heads."""
        self._config = config
        self._sources: list[DraftSource] = [LookupSource()]
        self._forced: StaticTrees | None = None
        if heads := _heads(model, config):
            self._sources.append(source := HeadSource(heads))
            log.info("%d Medusa heads are run by ONNX Runtime (%s)", heads.heads, heads.provider)
            self._forced = StaticTrees(source)
        self._names = tuple(source.name for source in self._sources)
        self._rows = [n for n in latency_model.ROWS if n <= largest_timed(config)]

    def known(self, model: Model) -> LatencyProfile | None:
        """T(n) with these weights, where it was measured before."""
        return latency_model.kept_profile(_key(model, self._config), self._rows)

    def measure(self, model: Model, piece: Piece = nullcontext) -> LatencyProfile:
        """The same, measured if need be. piece: see row_timer(). Raises ModelLoadError or DecodeError."""
        timer = row_timer(model, self._config, piece)
        return latency_model.measure_once(_key(model, self._config), timer, self._rows)

    def begin(self, engine: Engine, profile: LatencyProfile | None) -> None:
        """Draft where that pays, while nothing runs; without a profile only for those who insist on it."""
        if profile is None:
            engine.draft_with(Speculation(LatencyProfile(UNKNOWN), (), self._forced), self._names)
            log.info("drafts from %s, once it is measured where that pays", ", ".join(self._names))
            return
        engine.draft_with(Speculation(profile, self._sources, self._forced), self._names)
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
        log.warning("no Medusa heads: %s", error.message)
        return None


def shipped_heads(model: str) -> Path | None:
    """The file that comes with the package for this model, in any number format. Raises HeadsLoadError."""
    files = sorted(SHIPPED.glob("*.safetensors"))
    if not files:
        return None
    own = fingerprint(model)
    return next((path for path in files if _metadata(path).get(FINGERPRINT) == own), None)


def shipped_for_width(width: int) -> list[Path]:
    """Files that come with the package for models of this width: those that shipped_heads() may choose.

    Without reading the model. Raises HeadsLoadError.
    """
    return [path for path in sorted(SHIPPED.glob("*.safetensors")) if _width(path) == width]


def _width(path: Path) -> int:
    with _opened(path) as file:
        shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118
    return int(max(shape[-1] for shape in shapes if len(shape) > 1))


def _metadata(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        return file.metadata() or {}


def _opened(path: Path) -> safe_open:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise HeadsLoadError("Medusa heads need safetensors: pip install 'medusaq[medusa]'") from error
    return safe_open(path, framework="numpy")


def _load(path: str, model: Model, config: EngineConfig) -> OnnxHeads:
    heads = load_heads(
        path,
        width=model.width,
        vocab_size=model.vocab_size,
        lm_head=lambda ids: lm_head_rows(model.path, ids),
        threads=config.threads or usable_cores(),
    )
    made_for = heads.metadata.get(FINGERPRINT)
    if made_for is not None and made_for != fingerprint(model.path):
        log.warning(
            "%s: trained for another model than %s; what they guess may be of no use", path, model.path
        )
    return heads


def _key(model: Model, config: EngineConfig) -> str:
    """All that T(n) depends on."""
    file = Path(model.path)
    stat = file.stat()
    parts = (file.name, stat.st_size, stat.st_mtime_ns, model.description, build(), machine())
    return repr((*parts, config.threads, config.gpu_layers, config.kv_type, config.batch_invariant))
