"""Chooses the model of a request, and checks that a worker can serve it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from api.http.errors import BadRequest, NoWorker, UnknownModel
from tasks.store.workers import WorkerInfo

MODEL_REQUIRED = "model_required"


@dataclass(frozen=True, slots=True)
class View:
    """The models and workers known at one time. seen: models served in the past. announced: see Registry."""

    workers: Sequence[WorkerInfo] = ()
    announced: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()

    @property
    def served(self) -> list[str]:
        """Models that are running or are started on demand."""
        return sorted({worker.model for worker in self.workers} | self.announced)

    @property
    def known(self) -> list[str]:
        """Models that jobs may wait for."""
        return sorted({*self.served, *self.seen})

    def able(self, model: str | None) -> list[WorkerInfo]:
        """The live workers that serve this model; None is any model."""
        return [worker for worker in self.workers if model in (None, worker.model)]


def route(model: str | None, default: str | None, view: View, *, online: bool) -> str | None:
    """The model whose queue the request goes to; None is the queue of any worker.

    default: the model of requests that name none. Raises BadRequest if the request must name a model,
    UnknownModel, and for online requests NoWorker.
    """
    chosen = model
    if chosen is None:
        chosen, choices = model_of_unnamed(default, view)
        if choices:
            raise ambiguous_model(choices)
    if chosen is not None and chosen not in view.known and view.served:
        raise model_not_served(chosen, view.known, by_default=model is None)
    if online and not (view.able(chosen) or chosen in view.announced):
        of = "" if chosen is None or not view.workers else f" for {chosen!r}"
        raise NoWorker(
            f"no model worker{of} is alive: try again later, or send a job or a batch, which waits for one"
        )
    return chosen


def model_of_unnamed(default: str | None, view: View) -> tuple[str | None, list[str]]:
    """The model of requests that name none, and the models that they must choose from, if several."""
    if default is not None or not view.served:
        return default, []
    if len(view.served) > 1:
        return None, view.served
    [only] = view.served  # jobs without a model go to any worker, but none is started for them
    return (only if only in view.announced else None), []


def ambiguous_model(models: Collection[str]) -> BadRequest:
    """The error for a request that must name one of these models."""
    message = f"model: must be one of {', '.join(models)}, unless MEDUSAQ_DEFAULT_MODEL is set"
    return BadRequest(message, code=MODEL_REQUIRED, param="model")


def model_not_served(model: str, known: Collection[str], *, by_default: bool = False) -> UnknownModel:
    """The error for a model that is not among the known ones."""
    origin = " (from MEDUSAQ_DEFAULT_MODEL)" if by_default else ""
    return UnknownModel(
        f"model: no live worker serves {model!r}{origin}; known: {', '.join(known) or 'none'}"
    )
