"""Requests to prompt tokens, through the GGUF's chat template or a configured one."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.base.errors import ModelLoadError, RequestRefused
from engine.base.request import Request
from engine.llama.model import Model, Tokens
from engine.text import chat_templates, tool_prompt

log = logging.getLogger(__name__)

LARGE = 65_536  # characters of a prompt; the tokenizer takes up to 100 bytes of memory for each
SPACES = " \n\t\r\v\f"
OPEN = "<tool_call>"
OTHER = "<function="  # within it, in templates of models that write no JSON there


class PromptEncoder:
    """Encodes requests as token ids. Thread-safe."""

    def __init__(self, model: Model, template: str | None = None, most_tokens: int | None = None) -> None:
        """template: Jinja text that replaces the file's own. most_tokens: a prompt that must have more is
        refused before it is tokenized. Raises ModelLoadError for an invalid template.
        """
        self.model = model  # or the same with other weights
        self._most_tokens = most_tokens
        self._large = threading.Lock()
        self._bos, self._eos = model.bos_text, model.eos_text
        template = template or model.chat_template
        if not template:
            log.warning("%s: %s", model.path, chat_templates.missing(model.path))
        # The template is code from a downloaded file: it runs in Jinja's sandbox.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(template) if template else None
            asks_for = meta.find_undeclared_variables(environment.parse(template or ""))
        except TemplateError as error:
            raise ModelLoadError(f"{model.path}: its chat template cannot be read: {error}") from error
        # Calls are read in this format: a template of another one would teach the model a form that is not.
        own_format = OPEN in (template or "") and OTHER not in (template or "")
        self._takes_tools = own_format and "tools" in asks_for
        self._knows_calls = "tool_calls" in (template or "")

    def encode(self, request: Request) -> Tokens:
        """Prompt token ids. Raises RequestRefused when the template refuses the messages or the tools."""
        try:
            tokens = self._tokens(request)
        except UnicodeEncodeError as error:
            param = "messages" if request.prompt is None else "prompt"
            raise RequestRefused(f"{param} is not valid Unicode: {error}", param=param) from error
        if not len(tokens):
            raise RequestRefused("the prompt holds no token", param="prompt")
        return tokens

    def _tokens(self, request: Request) -> Tokens:
        if request.prompt is not None and (request.raw or self._template is None):
            if request.tools:
                raise RequestRefused("this model has no chat template", param="tools", code="no_tools")
            return self._tokenize(request.prompt, "prompt", add_bos=True)
        turns = request.messages or ({"role": "user", "content": request.prompt or ""},)
        text = self._render([_turn(turn) for turn in turns], [*request.tools], request.template_variables)
        begun = bool(self._bos) and text.startswith(self._bos)
        param = "messages" if request.prompt is None else "prompt"
        return self._tokenize(text, param, add_bos=not begun)

    def _tokenize(self, text: str, param: str, *, add_bos: bool) -> Tokens:
        """Large texts are tokenized one at a time, to bound memory."""
        if len(text) <= LARGE:
            return self.model.tokenize(text, add_bos=add_bos, special=True)
        if self._most_tokens is not None and (longest := self.model.longest_piece) is not None:
            # Spaces do not count: some control tokens absorb the spaces around them.
            least = -(-(len(text) - sum(map(text.count, SPACES))) // longest)
            if least > self._most_tokens:
                raise RequestRefused(
                    f"the prompt has at least {least} tokens, over the context of {self._most_tokens}",
                    code="context_length_exceeded",
                    param=param,
                )
        with self._large:
            return self.model.tokenize(text, add_bos=add_bos, special=True)

    def _render(self, messages: list[dict[str, Any]], tools: list[Any], variables: Mapping[str, Any]) -> str:
        if self._template is None:
            raise RequestRefused(
                "this model has no chat template: send a prompt, or start its worker with one",
                param="messages",
                code="no_chat_template",
            )
        calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if (tools and not self._takes_tools) or (calls and not self._knows_calls):
            return self._render_as_text(messages, tools, variables)
        return self._rendered(messages, {**variables, **({"tools": tools} if tools else {})})

    def _render_as_text(
        self, messages: list[dict[str, Any]], tools: list[Any], variables: Mapping[str, Any]
    ) -> str:
        """With tools and calls in the text of the turns. The user's has the tools where the template refuses
        the system's, or leaves it out."""
        turns = tool_prompt.as_text(messages)
        if not tools:
            return self._rendered(turns, variables)
        text = tool_prompt.describe(tools)
        try:
            rendered = self._rendered(tool_prompt.with_description(turns, text, "system"), variables)
        except RequestRefused:
            rendered = ""
        if tool_prompt.BEGIN in rendered:
            return rendered
        return self._rendered(tool_prompt.with_description(turns, text, "user"), variables)

    def _rendered(self, messages: list[dict[str, Any]], given: Mapping[str, Any]) -> str:
        assert self._template is not None
        own = {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": self._bos,
            "eos_token": self._eos,
        }
        try:
            return self._template.render({**given, **own})
        except Exception as error:  # foreign code: it may raise anything
            raise RequestRefused(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: arguments of tool calls as objects, not as JSON text."""
    turn = dict(message)
    if turn.get("tool_calls"):
        turn["tool_calls"] = [_call(call) for call in turn["tool_calls"]]
    return turn


def _call(call: Any) -> dict[str, Any]:
    try:
        function = dict(call["function"])
        if isinstance(function["arguments"], str):
            function["arguments"] = json.loads(function["arguments"] or "{}")
    except (KeyError, TypeError, ValueError) as error:
        message = "a tool call has no function with arguments in JSON"
        raise RequestRefused(message, param="messages") from error
    return {**call, "function": function}


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As in the reference renderer (transformers); Jinja's own filter escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
