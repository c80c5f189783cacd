"""The chunks of OpenAI's streaming responses, for chat and for completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from api.service.job_stream import Text
from tasks.schema.openai_responses import TOOL_CALLS, begun, chat_logprobs, completion_logprobs
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
