"""What a run would send: the first prompts, the tokens of all, and how long this machine would take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.base.errors import BadInput, ModelNotLoadable
from cli.prompts.prompt_reader import PromptLine, ReadOptions
from cli.prompts.run_time import RunTimes, kind_of, local_config
from cli.prompts.source import Source, opened_source
from tasks.base.settings import get_settings

if TYPE_CHECKING:
    from engine.base.config import EngineConfig
    from engine.text.prompt_encoder import PromptEncoder

SHOWN = 3
NOT_MEASURED = "not known: the first run measures the speed of a model on this machine"


def dry_run(name: str, options: ReadOptions, url: str | None, model: str | None) -> str:
    """The report, in lines. url, model: of the run, as RunOptions has them. Raises CliError."""
    with opened_source(name, options) as source:
        counter = _Counter(options, url, model)
        shown: list[str] = []

        def see(line: PromptLine) -> None:
            if line.problems:
                return
            if len(shown) < SHOWN:
                shown.append(f"{source.unit} {line.number} ({line.custom_id}):\n{_text(line.job)}\n")
            counter.add(line.job)

        found = source.summarize_to_send(see)
        rows = [("format", found.form()), ("requests", f"{found.good:,}")]
        if found.bad:
            rows.append(("invalid", f"{found.bad:,}{source.listing_problems()}"))
        rows += _missing(source, found.total)
    rows += counter.rows()
    return "\n".join([*shown, *(f"{name:<18}{value}" for name, value in rows)])


def _missing(source: Source, total: int) -> list[tuple[str, str]]:
    if source.table is None:
        return []
    return [
        ("empty", f"{column} in {count:,} of {total:,} rows")
        for column, count in source.rows.missing().items()
    ]


def _text(job: Mapping[str, Any]) -> str:
    """The prompt as it is sent, before the model's chat template."""
    if "prompt" in job:
        return str(job["prompt"])
    return "\n".join(
        f"[{message['role']}] {message.get('content') or json.dumps(message, ensure_ascii=False)}"
        for message in job["messages"]
    )


@dataclass
class _Counter:
    """Counts tokens with the tokenizer of the model that a local stack would run."""

    options: ReadOptions
    url: str | None
    model: str | None

    def __post_init__(self) -> None:
        self._requests = self._prompt_tokens = self._most_answer_tokens = 0
        self._default = get_settings().default_max_tokens
        self._config: EngineConfig | None = None
        self._encoder = self._open() if self.url is None else None

    def _open(self) -> PromptEncoder | None:
        """None without the engine's packages."""
        try:
            from engine import ModelLoadError
            from engine.llama.model import Model
            from engine.text import chat_templates
            from engine.text.prompt_encoder import PromptEncoder
        except ImportError:
            return None
        try:
            self._config = config = local_config(self.model)
            text = chat_templates.read(config.chat_template) if config.chat_template else None
            assert config.model is not None
            return PromptEncoder(Model(config.model, vocabulary_only=True), text)
        except ModelLoadError as error:
            raise ModelNotLoadable(error.message) from None

    def add(self, job: Mapping[str, Any]) -> None:
        self._requests += 1
        self._most_answer_tokens += job.get("max_tokens") or self._default
        if self._encoder is not None:
            self._prompt_tokens += self._count(job, self._encoder)

    def _count(self, job: Mapping[str, Any], encoder: PromptEncoder) -> int:
        from engine import Request, RequestRefused, SamplingParams

        messages = job.get("messages")
        try:
            request = Request(
                "dry-run",
                SamplingParams(),
                prompt=job.get("prompt"),
                messages=None if messages is None else tuple(messages),
                raw=bool(job.get("raw")),
                tools=tuple(job.get("tools") or ()),
            )
            return len(encoder.encode(request))
        except RequestRefused as error:
            raise BadInput(f"the model refuses a prompt: {error}") from None

    def rows(self) -> list[tuple[str, str]]:
        answers = ("answer tokens", f"at most {self._most_answer_tokens:,}")
        if self._encoder is None:
            why = "the model is at the gateway" if self.url else "the engine is not installed"
            return [("prompt tokens", f"not counted: {why}"), answers]
        return [("prompt tokens", f"{self._prompt_tokens:,}"), answers, ("time", self._time())]

    def _time(self) -> str:
        assert self._config is not None
        times = RunTimes(self._config)
        kind = kind_of(self.options)
        found = times.estimate(kind, self._requests, self._prompt_tokens, self._most_answer_tokens)
        return found.text() if found else NOT_MEASURED
