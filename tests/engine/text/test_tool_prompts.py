"""Tools in prompts: through the chat template, or as text where it has no place for them."""

from __future__ import annotations

import json

import pytest

from engine import Request, RequestRefused, SamplingParams
from engine.llama.model import Model, default_model_path
from engine.text.prompt_encoder import PromptEncoder
from tests.engine.text.helpers import WithTemplate, read

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Is it <b>'warm'</b> & sunny in Köln?",
            "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "null"}}},
        },
    },
)
TOOL_TEMPLATE = """
{%- if tools %}
[tools]
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
[/tools]
{%- endif %}
{%- for m in messages %}
<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>
{%- if m.content is not none %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}
<tool_call>{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{%- endfor %}
{%- if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


def call(arguments: object) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def with_tools(*messages: dict[str, object], tools: tuple[dict[str, object], ...] = TOOLS) -> Request:
    return Request(id="r", sampling=SamplingParams(), messages=messages, tools=tools)


def spelt(model: Model, encoder: PromptEncoder, request: Request) -> str:
    """The tiny model's vocabulary writes spaces in its own way."""
    return read(model, encoder, request).replace("▁", " ")


@pytest.fixture(scope="module")
def smol() -> Model:
    return Model(default_model_path())


USER: dict[str, object] = {"role": "user", "content": "Warm?"}


def test_tools_calls_and_their_results_go_through_the_template(with_template: WithTemplate) -> None:
    encoder, model = with_template(TOOL_TEMPLATE)
    request = with_tools(
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call('{"z": "Köln", "a": null}')]},
        {"role": "tool", "content": "18 °C", "tool_call_id": "c1", "name": "weather"},
    )
    definition = json.dumps(TOOLS[0], ensure_ascii=False)
    assert spelt(model, encoder, request) == (
        f"<s>[tools]{definition}[/tools]<system>Be brief.<user>Warm?<assistant>"
        '<tool_call>c1 weather {"z": "Köln", "a": null}</tool_call><tool weather>18 °C for c1<assistant>'
    )
    assert read(model, encoder, with_tools(USER, tools=())) == "<s><user>Warm?<assistant>"


@pytest.mark.parametrize("arguments", ["", "{}", {}])
def test_arguments_are_an_object_for_the_template(with_template: WithTemplate, arguments: object) -> None:
    encoder, model = with_template(TOOL_TEMPLATE)
    request = with_tools(USER, {"role": "assistant", "content": None, "tool_calls": [call(arguments)]})
    assert "<tool_call>c1 weather {}</tool_call>" in spelt(model, encoder, request)


def test_the_prompt_takes_tools_too_but_not_raw(with_template: WithTemplate) -> None:
    encoder, model = with_template(TOOL_TEMPLATE)
    request = Request(id="r", sampling=SamplingParams(), prompt="Warm?", tools=TOOLS)
    assert read(model, encoder, request) == read(model, encoder, with_tools(USER))
    with pytest.raises(RequestRefused) as refused:
        Request(id="r", sampling=SamplingParams(), prompt="Warm?", raw=True, tools=TOOLS)
    assert refused.value.param == "tools"


PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
OTHER_FORMATS = {
    "none": PLAIN,
    "another": "{% if tools %}{% for t in tools %}[TOOLS]{{ t | tojson }}{% endfor %}{% endif %}" + PLAIN,
    "not json": "{# {{ tools }}<tool_call><function=name> #}{% if tools %}[TOOLS]{% endif %}" + PLAIN,
}
BOTH_TURNS = (
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "I ask.", "tool_calls": [call("{}"), call('{"z": "Köln"}')]},
    {"role": "tool", "content": "18 °C", "tool_call_id": "c1"},
    {"role": "tool", "content": "20 °C", "tool_call_id": "c2"},
)


@pytest.mark.parametrize("template", OTHER_FORMATS.values(), ids=OTHER_FORMATS)
def test_a_template_of_no_such_calls_has_them_as_text(with_template: WithTemplate, template: str) -> None:
    encoder, model = with_template(template)
    text = spelt(model, encoder, with_tools(*BOTH_TURNS)).removeprefix("<s>")
    definition = json.dumps(TOOLS[0], ensure_ascii=False)
    system, rest = text.split("[user]", 1)
    assert system.startswith("[system]Be brief.\n\n# Tools\n")
    assert f"<tools>\n{definition}\n</tools>" in system
    assert rest == (
        'Warm?[assistant]I ask.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"z": "Köln"}}\n</tool_call>'
        "[user]<tool_response>\n18 °C\n</tool_response>\n<tool_response>\n20 °C\n</tool_response>[assistant]"
    )


def test_calls_without_tools_are_text_where_the_template_would_leave_them_out(
    with_template: WithTemplate,
) -> None:
    encoder, model = with_template(PLAIN)
    text = spelt(model, encoder, with_tools(*BOTH_TURNS, tools=()))
    assert text.startswith("<s>[system]Be brief.[user]Warm?[assistant]I ask.\n<tool_call>\n")
    assert "# Tools" not in text


@pytest.mark.parametrize(
    "system",
    [
        "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
        "{% if m.role == 'system' %}{% continue %}{% endif %}",
    ],
    ids=["refused", "left out"],
)
def test_the_user_is_told_of_tools_where_the_system_has_no_turn(
    with_template: WithTemplate, system: str
) -> None:
    encoder, model = with_template(
        "{% for m in messages %}" + system + "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    text = spelt(model, encoder, with_tools(USER))
    assert text.startswith("<s>[user]# Tools\n")
    assert text.endswith("answer as usual.\n\nWarm?")


def test_the_default_model_is_shown_tools(smol: Model) -> None:
    text = read(smol, PromptEncoder(smol), with_tools(USER))
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert json.dumps(TOOLS[0], ensure_ascii=False) in text
    assert text.endswith("<|im_end|>\n<|im_start|>user\nWarm?<|im_end|>\n<|im_start|>assistant\n")


def test_a_model_without_a_template_has_no_place_for_tools(with_template: WithTemplate) -> None:
    encoder, _ = with_template(None)
    with pytest.raises(RequestRefused, match="no chat template") as refused:
        encoder.encode(Request(id="r", sampling=SamplingParams(), prompt="Warm?", tools=TOOLS))
    assert (refused.value.param, refused.value.code) == ("tools", "no_tools")


@pytest.mark.parametrize(
    "broken", [call("{not json"), call(b"{}"), {"id": "c1"}, {"function": {"name": "x"}}, "call", None]
)
def test_a_call_that_is_none_is_refused(with_template: WithTemplate, broken: object) -> None:
    encoder, _ = with_template(TOOL_TEMPLATE)
    with pytest.raises(RequestRefused) as refused:
        encoder.encode(with_tools(USER, {"role": "assistant", "content": None, "tool_calls": [broken]}))
    assert (refused.value.param, refused.value.code) == ("messages", "invalid_request")


def test_a_template_may_ask_whether_there_are_tools(with_template: WithTemplate) -> None:
    """As many published ones do, some by setting the name themselves."""
    encoder, model = with_template(
        "{% if not tools is defined %}{% set tools = none %}{% endif %}"
        "{# <tool_call> #}{% if tools is not none %}{{ tools | length }}{% else %}none{% endif %}"
    )
    assert read(model, encoder, with_tools(USER)) == "<s>1"
    assert read(model, encoder, with_tools(USER, tools=())) == "<s>none"


def test_a_template_has_further_variables_but_none_of_its_own_replaced(with_template: WithTemplate) -> None:
    encoder, model = with_template("{{ messages[0].content }}{% if think %}[think {{ think }}]{% endif %}")
    variables = {"think": 3, "messages": [], "bos_token": "x"}
    request = Request(id="r", sampling=SamplingParams(), prompt="Hi", template_variables=variables)
    assert spelt(model, encoder, request) == "<s>Hi[think 3]"
