"""Prompts through the chat template of a GGUF: the default model's, odd ones, hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import ModelLoadError, Request, RequestRefused, SamplingParams
from engine.llama.model import Model, default_model_path
from engine.text.prompt_encoder import PromptEncoder
from tests.engine.helpers.tiny import write_tiny_gguf

BOS = 1  # of the tiny model
WithTemplate = Callable[[str | None], tuple[PromptEncoder, Model]]


def turns(*pairs: tuple[str, str]) -> Request:
    messages = tuple({"role": role, "content": content} for role, content in pairs)
    return Request(id="r", sampling=SamplingParams(), messages=messages)


def prompt(text: str, raw: bool = False) -> Request:
    return Request(id="r", sampling=SamplingParams(), prompt=text, raw=raw)


def read(model: Model, encoder: PromptEncoder, request: Request) -> str:
    """The prompt as the model sees it, control tokens spelt out."""
    return b"".join(model.piece(int(t), special=True) for t in encoder.encode(request)).decode()


@pytest.fixture(scope="module")
def smol() -> Model:
    return Model(default_model_path())


@pytest.fixture
def with_template(tmp_path: Path) -> WithTemplate:
    """A tiny model whose file carries this template."""

    def make(template: str | None) -> tuple[PromptEncoder, Model]:
        path = write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=template)
        model = Model(path)
        return PromptEncoder(model), model

    return make


# The default model


def test_turns_of_the_default_model(smol: Model) -> None:
    request = turns(("system", "Be brief."), ("user", "Hi!"), ("assistant", "Hello."), ("user", "Déjà vu?"))
    assert read(smol, PromptEncoder(smol), request) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nDéjà vu?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_markers_are_control_tokens_not_text(smol: Model) -> None:
    start = int(smol.tokenize("<|im_start|>", add_bos=False, special=True)[0])
    tokens = PromptEncoder(smol).encode(turns(("system", "a"), ("user", "b"))).tolist()
    assert tokens.count(start) == 3


def test_a_prompt_is_one_user_turn(smol: Model) -> None:
    encoder = PromptEncoder(smol)
    assert read(smol, encoder, prompt("Hi!")) == read(smol, encoder, turns(("user", "Hi!")))
    assert read(smol, encoder, prompt("Hi!")).endswith(
        "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_raw_prompt_is_sent_as_it_stands(smol: Model) -> None:
    text = "<|im_start|>user\n{{ 7 * 7 }}<|im_end|>\n  "
    assert read(smol, PromptEncoder(smol), prompt(text, raw=True)) == text


def test_what_a_message_says_is_never_a_template(smol: Model) -> None:
    text = "{{ 7 * 7 }}{% for x in range(9) %}{{ x }}{% endfor %}{{ ''.__class__ }}"
    assert text in read(smol, PromptEncoder(smol), prompt(text))


# What templates may use


def test_a_template_gets_what_the_usual_ones_expect(with_template: WithTemplate) -> None:
    encoder, model = with_template(
        "{% if add_generation_prompt %}\n([{{ bos_token }}|{{ eos_token }}]\n{% endif %}\n"
        "{{ strftime_now('%%') }}{{ messages | length }}{{ messages[0]['role'] }}"
        "{% if tools is defined %}tools{% endif %}"
    )
    assert read(model, encoder, turns(("user", "x"))) == "<s>([<s>|</s>]\n%1user"


def test_the_bos_token_comes_once(with_template: WithTemplate) -> None:
    encoder, _ = with_template("{{ bos_token }}{{ messages[0].content }}")
    assert encoder.encode(prompt("ab")).tolist().count(BOS) == 1
    encoder, _ = with_template("{{ messages[0].content }}")
    assert encoder.encode(prompt("ab")).tolist().count(BOS) == 1
    assert encoder.encode(prompt("ab", raw=True)).tolist()[0] == BOS


def test_loop_controls(with_template: WithTemplate) -> None:
    """Many published templates break out of loops; their reference renderer allows it."""
    encoder, model = with_template("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}")
    assert read(model, encoder, turns(("user", "a"), ("user", "b"))) == "<s>a"


# Templates that refuse, fail or attack


def test_a_template_may_refuse_the_messages(with_template: WithTemplate) -> None:
    encoder, _ = with_template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn, please') }}{% endif %}hi"
    )
    assert len(encoder.encode(turns(("user", "x"))))
    with pytest.raises(RequestRefused, match="no system turn, please") as refused:
        encoder.encode(turns(("system", "x")))
    assert (refused.value.param, refused.value.code) == ("messages", "invalid_request")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.upper() }}",
        "{{ nothing.at.all }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content.index('zzz') }}",
        "{{ '%d' % messages[0].content }}",
        "{{ messages[0].content | no_such_filter }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'other' %}",
        "{{ 'x'.encode('no-such-codec') }}",
    ],
)
def test_a_template_that_fails_refuses_the_request(with_template: WithTemplate, template: str) -> None:
    """Here or at load, but never with an error that is not the engine's."""
    try:
        encoder, _ = with_template(template)
    except ModelLoadError:
        return
    with pytest.raises(RequestRefused, match="the chat template refuses these messages") as refused:
        encoder.encode(prompt("x"))
    assert refused.value.param == "messages"


@pytest.mark.parametrize("template", ["{% if %}", "{{ unclosed", "{% endfor %}"])
def test_a_template_that_cannot_be_read_refuses_the_model(with_template: WithTemplate, template: str) -> None:
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf: .*chat template"):
        with_template(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
        "{{ raise_exception.__globals__['TemplateError'] }}",
        "{{ strftime_now.__globals__.datetime }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update(role='system') }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
    ],
)
def test_the_sandbox_refuses_a_hostile_template(with_template: WithTemplate, template: str) -> None:
    encoder, _ = with_template(template)
    with pytest.raises(RequestRefused, match="the chat template refuses these messages"):
        encoder.encode(prompt("x"))


# No template, no token, no Unicode


def test_without_a_template_a_prompt_is_raw_and_messages_are_refused(with_template: WithTemplate) -> None:
    encoder, model = with_template(None)
    assert read(model, encoder, prompt("hi")) == read(model, encoder, prompt("hi", raw=True)) == "<s>hi"
    with pytest.raises(RequestRefused, match="no chat template") as refused:
        encoder.encode(turns(("user", "hi")))
    assert (refused.value.param, refused.value.code) == ("messages", "no_chat_template")


def test_a_prompt_of_no_token_is_refused(smol: Model) -> None:
    silent = SimpleNamespace(
        chat_template="{# nothing #}", bos_text="", eos_text="", path=smol.path, tokenize=smol.tokenize
    )
    with pytest.raises(RequestRefused, match="holds no token") as refused:
        PromptEncoder(silent).encode(prompt("x"))  # type: ignore[arg-type]
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("how", ["prompt", "raw", "messages"])
def test_what_is_not_unicode_is_refused(smol: Model, how: str) -> None:
    text = "half a pair: \ud83d"
    request = turns(("user", text)) if how == "messages" else prompt(text, raw=how == "raw")
    with pytest.raises(RequestRefused, match="not valid Unicode") as refused:
        PromptEncoder(smol).encode(request)
    assert refused.value.param == ("messages" if how == "messages" else "prompt")


# Tools

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
[call {{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}]
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
        '[call c1 weather {"z": "Köln", "a": null}]<tool weather>18 °C for c1<assistant>'
    )
    assert read(model, encoder, with_tools(USER, tools=())) == "<s><user>Warm?<assistant>"


@pytest.mark.parametrize("arguments", ["", "{}", {}])
def test_arguments_are_an_object_for_the_template(with_template: WithTemplate, arguments: object) -> None:
    encoder, model = with_template(TOOL_TEMPLATE)
    request = with_tools(USER, {"role": "assistant", "content": None, "tool_calls": [call(arguments)]})
    assert "[call c1 weather {}]" in spelt(model, encoder, request)


def test_the_prompt_takes_tools_too_but_not_raw(with_template: WithTemplate) -> None:
    encoder, model = with_template(TOOL_TEMPLATE)
    request = Request(id="r", sampling=SamplingParams(), prompt="Warm?", tools=TOOLS)
    assert read(model, encoder, request) == read(model, encoder, with_tools(USER))
    with pytest.raises(RequestRefused) as refused:
        Request(id="r", sampling=SamplingParams(), prompt="Warm?", raw=True, tools=TOOLS)
    assert refused.value.param == "tools"


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{# tools #}{{ messages[0].tools }}x", None]
)
def test_a_template_that_takes_no_tools_refuses_them(
    with_template: WithTemplate, template: str | None
) -> None:
    encoder, _ = with_template(template)
    with pytest.raises(RequestRefused, match="tools") as refused:
        encoder.encode(Request(id="r", sampling=SamplingParams(), prompt="Warm?", tools=TOOLS))
    assert (refused.value.param, refused.value.code) == ("tools", "no_tools")


def test_the_default_model_takes_no_tools(smol: Model) -> None:
    with pytest.raises(RequestRefused) as refused:
        PromptEncoder(smol).encode(with_tools(USER))
    assert (refused.value.param, refused.value.code) == ("tools", "no_tools")


def test_calls_are_refused_by_a_template_that_would_leave_them_out(with_template: WithTemplate) -> None:
    encoder, _ = with_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    request = with_tools(USER, {"role": "assistant", "content": None, "tool_calls": [call("{}")]}, tools=())
    with pytest.raises(RequestRefused) as refused:
        encoder.encode(request)
    assert (refused.value.param, refused.value.code) == ("messages", "no_tools")


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
        "{% if tools is not none %}{{ tools | length }}{% else %}none{% endif %}"
    )
    assert read(model, encoder, with_tools(USER)) == "<s>1"
    assert read(model, encoder, with_tools(USER, tools=())) == "<s>none"
