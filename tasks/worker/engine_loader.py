"""Loads the engine of a model worker, as its settings name it."""

from __future__ import annotations

import importlib
import sys

from engine import EngineConfig, EngineService, HeadsLoadError
from engine.tools.failing_engine import FACTORY as REFUSING
from engine.tools.model_registry import Chosen, Register
from tasks.base.settings import Settings

EXIT_MODEL = 3  # the model cannot load: starting again would not help


def engine_config(settings: Settings, chosen: Chosen) -> EngineConfig:
    """Of a worker with these settings that serves these files. Raises ValueError where two contradict."""
    fields = {name: value for name, value in settings if name in EngineConfig.__dataclass_fields__}
    fields |= {"model": chosen.path, "chat_template": chosen.chat_template}
    return EngineConfig(**fields | {"heads": settings.heads or chosen.heads})


def load_engine(settings: Settings) -> tuple[EngineService, str]:
    """Call the engine factory: what it gives, and the name of its model.

    Ends the process with one line and EXIT_MODEL when it cannot.
    """
    module, _, function = settings.engine_factory.partition(":")
    try:
        chosen = Register().resolve(settings.model)
        config = engine_config(settings, chosen)
        service: EngineService = getattr(importlib.import_module(module), function)(config)
    except Exception as error:  # whatever it is, Celery would swallow it and wait for ever
        what = "the draft heads" if isinstance(error, HeadsLoadError) else "the model"
        print(f"error: {what} cannot be loaded: {error}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_MODEL) from None
    return service, chosen.name or service.info.name


def refuses_all(settings: Settings) -> bool:
    """Whether this engine stands in for a model that cannot be loaded, and refuses every request."""
    return settings.engine_factory == REFUSING
