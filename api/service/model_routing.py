"""Which model a request is for, and whether somebody will answer it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from api.http.errors import BadRequest, NoWorker, UnknownModel
from tasks.store.workers import WorkerInfo

MODEL_REQUIRED = "model_required"


@dataclass(frozen=True, slots=True)
class View:
    """What is known of models at a moment. seen: that workers have served, announced: as in Registry."""

    workers: Sequence[WorkerInfo] = ()
    announced: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()

    @property
    def served(self) -> list[str]:
        """Models that answer now, or as soon as they are asked for."""
        return sorted({worker.model for worker in self.workers} | self.announced)

    @property
    def known(self) -> list[str]:
        """Models that jobs may wait for."""
        return sorted({*self.served, *self.seen})

    def able(self, model: str | None) -> list[WorkerInfo]:
        """The live workers that take a request for this model; None is for any."""
        return [worker for worker in self.workers if model in (None, worker.model)]


def route(model: str | None, default: str | None, view: View, *, online: bool) -> str | None:
    """The model whose queue a request goes to, None for that of any worker.

    default: of requests that name none. online: somebody waits for the answer. Raises BadRequest where
    several models could be meant, UnknownModel, and, online, NoWorker.
    """
    chosen = model
    if chosen is None:
        chosen, choices = unnamed(default, view)
        if choices:
            raise several(choices)
    if chosen is not None and chosen not in view.known and view.served:
        raise not_served(chosen, view.known, by_default=model is None)
    if online and not (view.able(chosen) or chosen in view.announced):
        of = "" if chosen is None or not view.workers else f" for {chosen!r}"
        raise NoWorker(
            f"no model worker{of} is alive: try again later, or send a job or a batch, which waits"
        )
    return chosen


def unnamed(default: str | None, view: View) -> tuple[str | None, list[str]]:
    """The model of requests that name none, or the several that they have to choose from."""
    if default is not None or not view.served:
        return default, []
    if len(view.served) > 1:
        return None, view.served
    [only] = view.served  # jobs without a model go to any worker, but none is started for them
    return (only if only in view.announced else None), []


def several(models: Collection[str]) -> BadRequest:
    """What is said to a request that names none of them."""
    message = f"model: name one of {', '.join(models)}; a gateway with MEDUSAQ_DEFAULT_MODEL needs none"
    return BadRequest(message, code=MODEL_REQUIRED, param="model")


def not_served(model: str, known: Collection[str], *, by_default: bool = False) -> UnknownModel:
    """What is said of a model that is none of these."""
    origin = ", which MEDUSAQ_DEFAULT_MODEL says" if by_default else ""
    return UnknownModel(
        f"model: no live worker serves {model!r}{origin}; known: {', '.join(known) or 'none'}"
    )
