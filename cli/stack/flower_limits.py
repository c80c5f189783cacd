"""Limits for Flower: tornado does not limit connections, and waits an hour for a request; Flower does not
limit the width of its table of tasks. And what earlier releases told it, it is made to forget."""

from __future__ import annotations

import re
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

CONNECTIONS = 200  # enough for some browsers and API clients
IDLE_S = 60.0  # between two requests, and until the headers of one are complete
BODY_S = 60.0  # for the body of a request
BODY_BYTES = 1024 * 1024  # tornado's default is 100 MB

# Characters of a cell, so that the columns fit a window of 1,280 pixels.
ARGS_CHARS = 14
RESULT_CHARS = 34  # the tokens, their speed and the tokens of a step come first
SHORTER = (  # of a result
    (re.compile(r", \d+ steps(?=, )"), ""),
    (re.compile(r" tokens/step"), "/step"),
    (re.compile(r"^(([\d,]+) lines?), \2 succeeded(?=,)"), r"\1"),
)
WINDOW = re.compile(r"'batch_[0-9a-f]{32} (?:lines? )?([\d,]+.*)'")  # its batch is in the id beside it
JOB = re.compile(r"'[\d,]+ chars'")
ANSWER = " | "  # before an answer, in results of earlier releases


class BoundedServer(HTTPServer):
    """Closes connections beyond CONNECTIONS at once. Headers have tornado's own limit of 64 KB."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= CONNECTIONS:
            stream.close()
        else:
            super().handle_stream(stream, address)


def bound_flower() -> None:
    """Apply these limits to every HTTP server that this process creates from now on."""
    HTTPServer.configure(
        BoundedServer,
        idle_connection_timeout=IDLE_S,
        body_timeout=BODY_S,
        max_buffer_size=BODY_BYTES,
    )


def short_task(task: Any) -> Any:
    """Cut what Flower shows of a task. Its own copy; what it stores and its API answers is whole."""
    window = WINDOW.fullmatch(task.args) if isinstance(task.args, str) else None
    task.args = _cut(window[1] if window else task.args, ARGS_CHARS)
    if isinstance(task.result, str):
        result = task.result.strip("'")
        for found, instead in SHORTER:
            result = found.sub(instead, result, count=1)
        task.result = _cut(result, RESULT_CHARS)
    return task


def shorten_tasks() -> None:
    """Apply short_task() to the pages that this process serves."""
    import flower.options  # noqa: F401  defines the option
    from tornado.options import options

    options.format_task = short_task


def forget_prompts() -> None:
    """Make Flower load its state without the prompts and answers that earlier releases sent to it."""
    from flower.events import Events

    load = Events.load_state

    def load_state(self: Any) -> Any:
        state = load(self)
        for task in () if state is None else state.tasks.values():
            without_texts(task)
        return state

    Events.load_state = load_state


def without_texts(task: Any) -> None:
    """Leave sizes, times and codes of a stored task."""
    args = task.args or ""
    if not (JOB.fullmatch(args) or WINDOW.fullmatch(args)):
        task.args = None
    if task.exception:
        task.exception = task.exception.partition(":")[0]
        task.traceback = None
    if task.result:
        line, cut, _ = task.result.partition(ANSWER)
        task.result = line + line[:1] * bool(cut)


def _cut(value: Any, chars: int) -> Any:
    if not isinstance(value, str) or len(value) <= chars:
        return value
    return value[: chars - 1] + "…"
