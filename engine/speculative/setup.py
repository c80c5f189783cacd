"""Sets up the draft sources of an engine. A new source is added here only."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from engine.base.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.host.measurement_cache import machine
from engine.llama.context import usable_cores
from engine.llama.model import build
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.lm_head import FINGERPRINT, fingerprint, lm_head_rows
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.speculative import latency_model
from engine.speculative.controller import Speculation
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.row_timer import largest_timed, row_timer
from engine.speculative.static_tree import StaticTrees

if TYPE_CHECKING:
    from safetensors import safe_open

    from engine.medusa.onnx.heads import OnnxHeads

SHIPPED = Path(__file__).parents[1] / "medusa" / "trained"  # heads that come with the package
log = logging.getLogger(__name__)


def speculate(engine: Engine, config: EngineConfig) -> None:
    """Give the engine a Speculation over all available sources, with a measured latency profile.

    Raises HeadsLoadError for heads named in the config. The model must not be recurrent, since rejected
    drafts are rewound.
    """
    sources: list[DraftSource] = [LookupSource()]
    forced = None
    if heads := _heads(engine, config):
        sources.append(source := HeadSource(heads))
        log.info("%d Medusa heads are run by ONNX Runtime (%s)", heads.heads, heads.provider)
        forced = StaticTrees(source)
    rows = [n for n in latency_model.ROWS if n <= largest_timed(engine)]
    profile = latency_model.measure_once(_key(engine, config), row_timer(engine), rows)
    speculation = Speculation(profile, sources, forced)
    engine.set_draft_source(speculation, speculation.names)
    log.info(
        "drafts from %s; a call of 1, 2, 4, 8 rows takes %s ms",
        ", ".join(speculation.names),
        ", ".join(f"{profile.seconds(n) * 1e3:.1f}" for n in (1, 2, 4, 8)),
    )


def _heads(engine: Engine, config: EngineConfig) -> OnnxHeads | None:
    if config.heads is not None:
        return _load(config.heads, engine, config)
    try:
        path = shipped_heads(engine.model.path)
        return _load(str(path), engine, config) if path else None
    except HeadsLoadError as error:
        log.warning("no Medusa heads: %s", error.message)
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


def _load(path: str, engine: Engine, config: EngineConfig) -> OnnxHeads:
    model = engine.model
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


def _key(engine: Engine, config: EngineConfig) -> str:
    """The cache key of T(n): everything that it depends on."""
    file = Path(engine.model.path)
    stat = file.stat()
    parts = (file.name, stat.st_size, stat.st_mtime_ns, engine.model.description, build(), machine())
    return repr((*parts, config.threads, config.gpu_layers, config.kv_type, config.batch_invariant))
