"""Flows: what is to be done over HTTP, step by step, for blocking and asynchronous connections alike.

A flow is a generator. It yields a step, and is sent the step's result or thrown its error. Also after an
error such as KeyboardInterrupt or Abandoned it may go on with steps that clean up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class Abandoned(BaseException):
    """The caller reads no further. GeneratorExit would end the flows inside a flow before they clean up."""


@dataclass(frozen=True, slots=True)
class Send:
    """A request; the result is the whole httpx.Response. options: of httpx. read_s: longest silence."""

    method: str
    path: str
    read_s: float
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Open:
    """The same, with a Stream as the result. The body of a refusal is read at once."""

    send: Send


@dataclass(frozen=True, slots=True)
class Stream:
    """An open response. blocks: of its body; the connection reads them."""

    response: httpx.Response
    blocks: Iterator[bytes] | AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Read:
    """The result is the next block of bytes, None at the end."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a stream, read to its end or not."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class Sleep:
    """Pauses."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Give:
    """Hands items to the caller, who iterates over those of all steps."""

    items: Sequence[Any]


Step = Send | Open | Read | Close | Sleep | Give
Flow = Generator[Step, Any, T]


class Walk(Generic[T]):
    """Goes through a flow. As a context manager it takes the error of a step, for the flow to handle."""

    value: T  # at the end

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self._error: BaseException | None = None
        self.result: Any = None  # of the last step

    def step(self) -> Step | None:
        """The next step; None at the end. Raises what the flow raises."""
        result, error = self.result, self._error
        self.result = self._error = None
        try:
            return self._flow.send(result) if error is None else self._flow.throw(error)
        except StopIteration as end:
            self.value = end.value
        except Abandoned:
            pass
        return None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._error = Abandoned() if isinstance(error, GeneratorExit) else error
        return error is not None
