"""Path parameters that are ids: what does not match the syntax is answered like an unknown id, with 404."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from tasks.base.errors import BatchNotFound, DeliveryNotFound, FileNotFound, JobNotFound, TasksError
from tasks.records.ids import BATCH, DELIVERY, FILE, JOB, IdSyntax


def checked(syntax: IdSyntax, unknown: Callable[[str], TasksError]) -> Callable[[str], str]:
    """Gives its argument back, or raises what `unknown` makes of it."""

    def check(text: str) -> str:
        if not syntax.matches(text):
            raise unknown(text)  # no ValueError, so pydantic lets it pass to the error handlers
        return text

    return check


def schema(syntax: IdSyntax) -> WithJsonSchema:
    """What the OpenAPI document says of such an id."""
    return WithJsonSchema({"type": "string", "pattern": syntax.pattern})


JobId = Annotated[str, AfterValidator(checked(JOB, JobNotFound)), schema(JOB)]
BatchId = Annotated[str, AfterValidator(checked(BATCH, BatchNotFound)), schema(BATCH)]
FileId = Annotated[str, AfterValidator(checked(FILE, FileNotFound)), schema(FILE)]
DeliveryId = Annotated[str, AfterValidator(checked(DELIVERY, DeliveryNotFound)), schema(DELIVERY)]
