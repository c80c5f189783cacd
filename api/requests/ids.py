"""Path parameters that are ids. An id of the wrong syntax is answered like an unknown one, with 404."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from tasks.base.errors import (
    BatchNotFound,
    DeliveryNotFound,
    FileNotFound,
    JobNotFound,
    ResponseNotFound,
    TasksError,
)
from tasks.records.ids import BATCH, DELIVERY, FILE, JOB, RESPONSE, IdSyntax


def checked(syntax: IdSyntax, unknown: Callable[[str], TasksError]) -> Callable[[str], str]:
    """Make a validator that returns a valid id, and raises unknown(id) for any other."""

    def check(text: str) -> str:
        if not syntax.matches(text):
            raise unknown(text)  # not a ValueError, so pydantic passes it on to the error handlers
        return text

    return check


def schema(syntax: IdSyntax) -> WithJsonSchema:
    """The OpenAPI schema of an id."""
    return WithJsonSchema({"type": "string", "pattern": syntax.pattern})


JobId = Annotated[str, AfterValidator(checked(JOB, JobNotFound)), schema(JOB)]
ResponseId = Annotated[str, AfterValidator(checked(RESPONSE, ResponseNotFound)), schema(RESPONSE)]
BatchId = Annotated[str, AfterValidator(checked(BATCH, BatchNotFound)), schema(BATCH)]
FileId = Annotated[str, AfterValidator(checked(FILE, FileNotFound)), schema(FILE)]
DeliveryId = Annotated[str, AfterValidator(checked(DELIVERY, DeliveryNotFound)), schema(DELIVERY)]
