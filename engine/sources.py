"""Which draft sources an engine has. A new one is added here, and nowhere else."""

from __future__ import annotations

import logging
from pathlib import Path

from engine import latency
from engine.config import EngineConfig
from engine.context import usable_cores
from engine.draft import DraftSource
from engine.engine import Engine
from engine.head_backends import Loaded, load_heads
from engine.head_layouts import HeadsLoadError
from engine.head_source import HeadSource
from engine.lm_head import FINGERPRINT, fingerprint, lm_head_rows
from engine.lookup import LookupSource
from engine.measured import machine
from engine.model import build
from engine.speculation import Speculation
from engine.static_tree import StaticTrees

SHIPPED = Path(__file__).parent / "trained"  # heads that come with the package
log = logging.getLogger(__name__)


def speculate(engine: Engine, config: EngineConfig) -> None:
    """Let the engine draft from all its sources where that pays.

    Raises HeadsLoadError for given heads. The model must be able to forget its last tokens.
    """
    sources: list[DraftSource] = [LookupSource()]
    forced = None
    if loaded := _heads(engine, config):
        sources.append(source := HeadSource(loaded.heads))
        log.info("heads are run by %s", loaded.backend)
        forced = StaticTrees(source)
    rows = [n for n in latency.ROWS if n <= engine.largest_timed]
    profile = latency.measure_once(_key(engine, config), engine.row_timer(), rows)
    speculation = Speculation(profile, sources, forced)
    engine.draft_with(speculation, speculation.names)
    log.info(
        "drafts from %s; a call of 1, 2, 4, 8 rows takes %s ms",
        ", ".join(speculation.names),
        ", ".join(f"{profile.seconds(n) * 1e3:.1f}" for n in (1, 2, 4, 8)),
    )


def _heads(engine: Engine, config: EngineConfig) -> Loaded | None:
    if config.heads is not None:
        return _load(config.heads, engine, config)
    try:
        path = shipped_heads(engine.model.path)
        return _load(str(path), engine, config) if path else None
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


def _metadata(path: Path) -> dict[str, str]:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise HeadsLoadError("Medusa heads need safetensors: pip install 'medusaq[medusa]'") from error
    with safe_open(path, framework="numpy") as file:
        return file.metadata() or {}


def _load(path: str, engine: Engine, config: EngineConfig) -> Loaded:
    model = engine.model
    loaded = load_heads(
        path,
        width=model.width,
        vocab_size=model.vocab_size,
        lm_head=lambda ids: lm_head_rows(model.path, ids),
        backend=config.heads_backend,
        threads=config.threads or usable_cores(),
    )
    made_for = loaded.heads.metadata.get(FINGERPRINT)
    if made_for is not None and made_for != fingerprint(model.path):
        log.warning(
            "%s: trained for another model than %s; what they guess may be of no use", path, model.path
        )
    return loaded


def _key(engine: Engine, config: EngineConfig) -> str:
    """All that T(n) depends on."""
    file = Path(engine.model.path)
    stat = file.stat()
    parts = (file.name, stat.st_size, stat.st_mtime_ns, engine.model.description, build(), machine())
    return repr((*parts, config.threads, config.gpu_layers, config.kv_type, config.batch_invariant))
