"""The memory budget of several models on one machine, and the memory that each needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ByteSize, TypeAdapter, ValidationError

from cli.base.errors import BadInput
from common.units import size
from tasks.base.settings import Settings

if TYPE_CHECKING:
    from engine.host.system_memory import Memory
    from engine.tools.memory_estimate import Needed
    from engine.tools.model_registry import NamedModel

RESERVE = 0.1  # of what is available: other programs grow too


@dataclass(frozen=True, slots=True)
class Served:
    """A model by its served name. source: the path or name that its worker gets as MEDUSAQ_MODEL."""

    name: str
    source: str
    needed: Needed


def parse_size(text: str, what: str) -> int:
    """Parse a size such as 6GB, 512MiB or 1.5g into bytes. Raises BadInput, which names `what`."""
    try:
        count = int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError:
        raise BadInput(f"{what}: {text!r} is no size; say 6GB or 512MiB") from None
    if count <= 0:
        raise BadInput(f"{what}: no model runs in {text.strip()}; say 6GB or 512MiB, or leave it out")
    return count


def budget_of(given: str | None, machine: Memory) -> tuple[int, str | None]:
    """The budget in bytes for all models together, and a warning if needed. Raises BadInput."""
    if given is None:
        return int(machine.available * (1 - RESERVE)), None
    budget = parse_size(given, "--memory")
    if budget <= machine.whole:
        return budget, None
    return (
        budget,
        f"warning: a memory budget of {size(budget)} is more than the {size(machine.whole)} there are",
    )


def served_models(sources: Sequence[str], settings: Settings) -> list[Served]:
    """Read from the files what each model needs. sources: names and paths; "" is the default model.

    Raises BadInput for one that cannot be served, or is named twice.
    """
    from engine import ModelLoadError
    from engine.host.system_memory import look_at_memory
    from engine.llama.model import default_model_path
    from engine.tools.memory_estimate import needed
    from engine.tools.model_registry import Register
    from tasks.worker.engine_loader import engine_config

    register, models, memory = Register(), list[Served](), look_at_memory().whole
    for name in sources:
        try:
            chosen = register.resolve(name or None)
            config = engine_config(settings, chosen)
            path = chosen.path or default_model_path()
            found = Served(chosen.name or Path(path).stem, name or path, needed(config, memory))
        except ModelLoadError as error:
            raise BadInput(error.message) from None
        if any(other.name == found.name for other in models):
            raise BadInput(f"two models are called {found.name!r}, and jobs name them by that: leave one out")
        models.append(found)
    return models


def need_of(model: NamedModel, settings: Settings) -> int | None:
    """Bytes of memory for a worker with these settings; None if the model cannot be read."""
    from engine import ModelLoadError
    from engine.host.system_memory import look_at_memory
    from engine.tools.memory_estimate import needed
    from engine.tools.model_registry import Chosen
    from tasks.worker.engine_loader import engine_config

    chosen = Chosen(model.model.path, heads=None if model.heads is None else model.heads.path)
    try:
        return needed(engine_config(settings, chosen), look_at_memory().whole).total
    except ModelLoadError:  # the file is gone, or no number format was chosen for it yet
        return None


def check_each_fits(models: Sequence[Served], budget: int, settings: Settings) -> None:
    """Raises BadInput for a model that could never run."""
    for model in models:
        if model.needed.total > budget:
            parts = ", ".join(f"{name} {size(count)}" for name, count in model.needed.largest[:3])
            raise BadInput(
                f"{model.name} needs {size(model.needed.total)} ({parts}), and the memory budget is "
                f"{size(budget)}: take fewer MEDUSAQ_KV_CELLS (now {settings.kv_cells}), a smaller format "
                "(medusaq compile --for-this-machine), or give more --memory"
            )
