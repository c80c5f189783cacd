"""Parses tool calls in generated text, in the format of Hermes and Qwen: <tool_call>{JSON}</tool_call>."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

OPEN = "<tool_call>"
CLOSE = "</tool_call>"

Function = Mapping[str, str]  # name, and arguments as JSON text


def may_call_tools(request: Mapping[str, Any]) -> bool:
    """Whether the model is shown tools."""
    return bool(request.get("tools")) and request.get("tool_choice") != "none"


def must_call_tools(request: Mapping[str, Any]) -> bool:
    """Whether the answer can only be calls."""
    return may_call_tools(request) and request.get("tool_choice", "auto") != "auto"


class ToolCallSplitter:
    """Splits streamed text into content and calls. An incomplete block, or one without a call, stays content,
    but for an incomplete one right after a call: the answer was cut off in one of several.

    White space around a call is dropped. Text that may become a call, and white space that may precede one,
    are held back until more text decides.
    """

    def __init__(self) -> None:
        self._pending = ""  # not decided yet; begins with OPEN inside a block
        self._space = ""  # at the end of the content so far
        self._after_call = False

    def feed(self, text: str, final: bool = False) -> list[str | Function]:
        """Return content and calls in their order. final: no more text follows."""
        self._pending += text
        found: list[str | Function] = []
        while self._pending:
            start = self._pending.find(OPEN)
            if start != 0:
                sure = start if start > 0 else len(self._pending) - self._may_open()
                self._add(self._pending[:sure], found)
                self._pending = self._pending[sure:]
                if start < 0:
                    break
            end = self._pending.find(CLOSE)
            if end < 0:
                break
            block, self._pending = self._pending[: end + len(CLOSE)], self._pending[end + len(CLOSE) :]
            if (function := called_function(block[len(OPEN) : -len(CLOSE)])) is None:
                self._add(block, found)
            else:
                found.append(function)
                self._space, self._after_call = "", True
        if final:
            if self._after_call and self._pending.startswith(OPEN):
                self._pending = ""
            self._add(self._pending, found)
            if self._space:
                found.append(self._space)
            self._pending = self._space = ""
        return found

    def _may_open(self) -> int:
        """Number of characters at the end of the pending text that are a prefix of OPEN."""
        most = min(len(OPEN) - 1, len(self._pending))
        return next((n for n in range(most, 0, -1) if OPEN.startswith(self._pending[-n:])), 0)

    def _add(self, text: str, found: list[str | Function]) -> None:
        """Add content without white space after a call. White space at its end waits for more content."""
        if self._after_call:
            text = text.lstrip()
        if not text:
            return
        self._after_call = False
        text = self._space + text
        content = text.rstrip()
        self._space = text[len(content) :]
        if content:
            found.append(content)


def split(text: str) -> list[str | Function]:
    """Content and calls of a whole answer."""
    return ToolCallSplitter().feed(text, final=True)


def called_function(block: str) -> Function | None:
    """The call in a block; None if it holds none."""
    try:
        call = json.loads(block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"name": call["name"], "arguments": arguments}


def tool_call(function: Function, job_id: str, number: int) -> dict[str, object]:
    """A call in OpenAI's format; its id is the job's with a number."""
    call_id = f"call_{job_id.removeprefix('job_')}_{number}"
    return {"id": call_id, "type": "function", "function": dict(function)}
