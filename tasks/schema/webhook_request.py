"""Schemas of a webhook in a request body."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tasks.records.webhook import MAX_URL, Webhook, target_of
from tasks.schema.messages import Strict

JobEvent = Literal["job.succeeded", "job.failed", "job.cancelled", "job.expired"]
BatchEvent = Literal["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]


def _checked(url: str) -> str:
    try:
        target_of(url)
    except ValueError as error:
        raise PydanticCustomError("no_url", str(error)) from None
    return url


Event = TypeVar("Event")
Events = Annotated[list[Event], Field(min_length=1, max_length=4)]
Url = Annotated[str, AfterValidator(_checked), Field(max_length=MAX_URL)]


class JobWebhook(Strict):
    """The URL to which the end of the job is sent; any end unless events are given."""

    url: Url
    events: Events[JobEvent] | None = None

    def chosen(self) -> Webhook:
        return Webhook(self.url, tuple(self.events or get_args(JobEvent)))


class BatchWebhook(Strict):
    """The URL to which the end of the batch is sent; any end unless events are given."""

    url: Url
    events: Events[BatchEvent] | None = None

    def chosen(self) -> Webhook:
        return Webhook(self.url, tuple(self.events or get_args(BatchEvent)))
