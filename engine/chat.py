"""From a request to prompt tokens, through the chat template inside the GGUF."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelLoadError, RequestRefused
from engine.model import Model, Tokens
from engine.request import Request


class PromptEncoder:
    """Turns requests into token ids. Safe to call from any thread."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._bos, self._eos = model.bos_text, model.eos_text
        template = model.chat_template
        # The template is code from a downloaded file: it runs in Jinja's sandbox.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(template) if template else None
        except TemplateError as error:
            raise ModelLoadError(f"{model.path}: its chat template cannot be read: {error}") from error

    def encode(self, request: Request) -> Tokens:
        """Prompt token ids. Raises RequestRefused when the template refuses the messages."""
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
            return self._model.tokenize(request.prompt, add_bos=True, special=True)
        turns = request.messages or ({"role": "user", "content": request.prompt or ""},)
        text = self._render([dict(turn) for turn in turns])
        begun = bool(self._bos) and text.startswith(self._bos)
        return self._model.tokenize(text, add_bos=not begun, special=True)

    def _render(self, messages: list[dict[str, Any]]) -> str:
        if self._template is None:
            raise RequestRefused(
                "this model has no chat template: send a prompt", param="messages", code="no_chat_template"
            )
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, bos_token=self._bos, eos_token=self._eos
            )
        except Exception as error:  # foreign code: it may raise anything
            raise RequestRefused(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
