"""What OpenAI's APIs stream: chunks of chats and of completions, events of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from api.service.job_stream import Text
from tasks.schema.openai_responses import TOOL_CALLS, begun, chat_logprobs, completion_logprobs
from tasks.schema.responses_api import objects
from tasks.schema.tool_calls import ToolCallSplitter, tool_call

Chunk = dict[str, Any]


class StreamChoice(Protocol):
    """One choice of a stream. Its methods return entries of `choices`, one for each chunk."""

    def text(self, piece: Text) -> list[Chunk]: ...
    def end(self, finish_reason: str) -> list[Chunk]: ...


class ChatChoice:
    """A choice of a chat completion. With tools, tool calls are extracted from the text."""

    def __init__(self, index: int, job_id: str, tools: bool) -> None:
        self._index = index
        self._job_id = job_id
        self._splitter = ToolCallSplitter() if tools else None
        self._calls = 0
        self._begun = False

    def text(self, piece: Text) -> list[Chunk]:
        parts = self._splitter.feed(piece.text) if self._splitter else [piece.text]
        deltas = [self._delta(part) for part in parts]
        if piece.logprobs:
            deltas = deltas or [{}]
        chunks = [*self._role(), *(self._chunk(delta) for delta in deltas)]
        if piece.logprobs:
            chunks[-1]["logprobs"] = chat_logprobs(piece.logprobs)
        return chunks

    def end(self, finish_reason: str) -> list[Chunk]:
        rest = self._splitter.feed("", final=True) if self._splitter else []
        deltas = [self._delta(part) for part in rest]
        reason = TOOL_CALLS if self._calls else finish_reason
        return [*self._role(), *(self._chunk(delta) for delta in deltas), self._chunk({}, reason)]

    def _role(self) -> list[Chunk]:
        """The first chunk, which has the role; nothing later."""
        if self._begun:
            return []
        self._begun = True
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def _delta(self, part: str | Mapping[str, str]) -> Chunk:
        if isinstance(part, str):
            return {"content": part}
        call = {"index": self._calls, **tool_call(part, self._job_id, self._calls)}
        self._calls += 1
        return {TOOL_CALLS: [call]}

    def _chunk(self, delta: Chunk, finish_reason: str | None = None) -> Chunk:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


class CompletionChoice:
    """A choice of a text completion."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._characters = 0  # text offset of the next token

    def text(self, piece: Text) -> list[Chunk]:
        logprobs = completion_logprobs(piece.logprobs, self._characters) if piece.logprobs else None
        self._characters += sum(map(begun, piece.logprobs))
        return [self._chunk(piece.text, logprobs)]

    def end(self, finish_reason: str) -> list[Chunk]:
        return [self._chunk("", None, finish_reason)]

    def _chunk(self, text: str, logprobs: Chunk | None, finish_reason: str | None = None) -> Chunk:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


class ResponseEvents:
    """The events of one response, from begin() to end(). A call comes whole."""

    def __init__(self, record: Mapping[str, Any], tools: bool, model: str | None) -> None:
        self._record, self._model = record, model
        self._splitter = ToolCallSplitter() if tools else None
        self._events = 0
        self._items = 0  # that have begun
        self._calls = 0
        self._message: Chunk | None = None  # that is being written
        self._text = ""
        self._logprobs: list[Chunk] = []

    def begin(self) -> list[Chunk]:
        shown = objects.response(self._record, model=self._model) | {"status": "in_progress"}
        return [
            self._event("response.created", response=shown),
            self._event("response.in_progress", response=shown),
        ]

    def text(self, piece: Text) -> list[Chunk]:
        logprobs = (chat_logprobs(piece.logprobs) or {})["content"] if piece.logprobs else []
        parts = self._splitter.feed(piece.text) if self._splitter else [piece.text]
        return self._parts(parts, logprobs)

    def end(self, record: Mapping[str, Any]) -> list[Chunk]:
        """record: of the job, which has an answer."""
        events = self._parts(self._splitter.feed("", final=True) if self._splitter else [], [])
        if not self._items:
            events += self._open()
        whole = objects.response(record, self._logprobs, self._model)
        events += self._close(whole["status"])
        return [*events, self._event(f"response.{whole['status']}", response=whole)]

    def failed(self, error: Mapping[str, Any]) -> Chunk:
        """error: code and message."""
        shown = objects.response(self._record, model=self._model) | {"status": "failed", "error": {**error}}
        return self._event("response.failed", response=shown)

    def _parts(self, parts: Sequence[str | Mapping[str, str]], logprobs: list[Chunk]) -> list[Chunk]:
        events: list[Chunk] = []
        for part in parts:
            if not isinstance(part, str):
                events += [*self._close("completed"), *self._call(part)]
                continue
            events += self._open()
            self._text += part
            self._logprobs += logprobs
            events.append(
                self._event("response.output_text.delta", **self._place, delta=part, logprobs=logprobs)
            )
            logprobs = []
        return events

    @property
    def _place(self) -> Chunk:
        assert self._message is not None
        return {"item_id": self._message["id"], "output_index": self._items - 1, "content_index": 0}

    def _open(self) -> list[Chunk]:
        if self._message is not None:
            return []
        self._message = objects.message_item(self._record["id"], self._items, "in_progress")
        added = self._event("response.output_item.added", output_index=self._items, item=self._message)
        self._items += 1
        part = objects.text_part("")
        return [added, self._event("response.content_part.added", **self._place, part=part)]

    def _close(self, status: str) -> list[Chunk]:
        if self._message is None:
            return []
        place, part = self._place, objects.text_part(self._text, self._logprobs)
        item = {**self._message, "status": status, "content": [part]}
        self._message, self._text = None, ""
        return [
            self._event("response.output_text.done", **place, text=part["text"], logprobs=part["logprobs"]),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=place["output_index"], item=item),
        ]

    def _call(self, function: Mapping[str, str]) -> list[Chunk]:
        item = objects.call_item(function, self._record["id"], self._calls, "completed")
        place = {"item_id": item["id"], "output_index": self._items}
        begun = {**item, "status": "in_progress", "arguments": ""}
        self._calls, self._items = self._calls + 1, self._items + 1
        arguments = item["arguments"]
        return [
            self._event("response.output_item.added", output_index=place["output_index"], item=begun),
            self._event("response.function_call_arguments.delta", **place, delta=arguments),
            self._event(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=arguments
            ),
            self._event("response.output_item.done", output_index=place["output_index"], item=item),
        ]

    def _event(self, kind: str, **fields: Any) -> Chunk:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return event
