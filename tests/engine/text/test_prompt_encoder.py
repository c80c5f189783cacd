"""Prompts through the chat template of a GGUF: the default model's, odd ones, hostile ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine import ModelLoadError, Request, RequestRefused, SamplingParams
from engine.llama.model import Model, default_model_path
from engine.text.prompt_encoder import PromptEncoder
from tests.engine.text.helpers import WithTemplate, read

BOS = 1  # of the tiny model


def turns(*pairs: tuple[str, str]) -> Request:
    messages = tuple({"role": role, "content": content} for role, content in pairs)
    return Request(id="r", sampling=SamplingParams(), messages=messages)


def prompt(text: str, raw: bool = False) -> Request:
    return Request(id="r", sampling=SamplingParams(), prompt=text, raw=raw)


@pytest.fixture(scope="module")
def smol() -> Model:
    return Model(default_model_path())


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
