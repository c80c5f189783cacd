"""Pydantic AI: the default output (a tool), native output, its own tools, models by name."""

from __future__ import annotations

import os

from harness import KEY, MODEL, QUESTION, URL, Person, is_person, run
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

os.environ |= {"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": KEY}
SETTINGS = {"max_tokens": 300, "temperature": 0.0}
provider = OpenAIProvider(base_url=URL, api_key=KEY)


def chat() -> None:
    agent = Agent(OpenAIChatModel(MODEL, provider=provider), model_settings=SETTINGS)
    assert agent.run_sync(QUESTION).output


def default_output() -> None:
    agent = Agent(OpenAIChatModel(MODEL, provider=provider), output_type=Person, model_settings=SETTINGS)
    is_person(agent.run_sync(QUESTION).output)


def native_output() -> None:
    model = OpenAIChatModel(MODEL, provider=provider)
    agent = Agent(model, output_type=NativeOutput(Person), model_settings=SETTINGS)
    is_person(agent.run_sync(QUESTION).output)


def by_name() -> None:
    agent = Agent(f"openai:{MODEL}", output_type=Person, model_settings=SETTINGS)
    is_person(agent.run_sync(QUESTION).output)


def responses() -> None:
    agent = Agent(OpenAIResponsesModel(MODEL, provider=provider), output_type=Person, model_settings=SETTINGS)
    is_person(agent.run_sync(QUESTION).output)


run(
    {
        "chat": chat,
        "the default output": default_output,
        "`NativeOutput`": native_output,
        "`openai:NAME`": by_name,
        "`OpenAIResponsesModel`": responses,
    }
)
