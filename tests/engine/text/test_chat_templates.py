"""Templates given beside a GGUF: Vicuna's own to the letter, files, and what a model without one is told."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine import EngineConfig, ModelLoadError, Request, RequestRefused, SamplingParams, load
from engine.llama.model import Model
from engine.text.chat_templates import find, known, read
from engine.text.prompt_encoder import PromptEncoder
from tests.engine.helpers.drive import opened
from tests.engine.helpers.tiny import write_tiny_gguf

OPENING = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions."
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose file carries no template, as Vicuna's."""
    return Model(write_tiny_gguf(tmp_path_factory.mktemp("bare") / "tiny-vicuna.gguf", chat_template=None))


def said(model: Model, template: str | None, *pairs: tuple[str, str]) -> str:
    """The prompt as the model sees it, control tokens spelt out."""
    messages = tuple({"role": role, "content": content} for role, content in pairs)
    return spelt(model, template, Request(id="r", sampling=SamplingParams(), messages=messages))


def spelt(model: Model, template: str | None, request: Request) -> str:
    tokens = PromptEncoder(model, template).encode(request).tolist()
    text = b"".join(model.piece(token, special=True) for token in tokens).decode()
    return text.replace("\u2581", " ")  # SentencePiece's space, for which the tiny model has bytes alone


def test_one_turn_of_vicuna(bare: Model) -> None:
    assert said(bare, read("vicuna"), ("user", "Hi!")) == f"<s>{OPENING} USER: Hi! ASSISTANT:"


def test_a_prompt_is_one_user_turn(bare: Model) -> None:
    request = Request(id="r", sampling=SamplingParams(), prompt="Hi!")
    assert spelt(bare, read("vicuna"), request) == f"<s>{OPENING} USER: Hi! ASSISTANT:"


def test_several_turns_of_vicuna(bare: Model) -> None:
    """Answers begin with a space, as the model writes them; the format has one there already."""
    turns = [("user", "Hi!"), ("assistant", " Hello. "), ("user", "Two\nlines"), ("assistant", "Yes.")]
    assert said(bare, read("vicuna"), *turns, ("user", "And?")) == (
        f"<s>{OPENING} USER: Hi! ASSISTANT: Hello.</s>USER: Two\nlines ASSISTANT: Yes.</s>"
        "USER: And? ASSISTANT:"
    )


def test_a_system_message_takes_the_place_of_vicunas_own(bare: Model) -> None:
    turns = [("system", "Be brief."), ("user", "Hi!")]
    assert said(bare, read("vicuna"), *turns) == "<s>Be brief. USER: Hi! ASSISTANT:"


def test_answers_end_with_the_control_token(bare: Model) -> None:
    request = Request(
        id="r",
        sampling=SamplingParams(),
        messages=({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}),
    )
    [end] = bare.tokenize("</s>", add_bos=False, special=True).tolist()
    assert bare.ends_generation(end)
    assert PromptEncoder(bare, read("vicuna")).encode(request).tolist().count(end) == 1


def test_vicuna_knows_no_second_system(bare: Model) -> None:
    with pytest.raises(RequestRefused, match="then user and assistant, not system"):
        said(bare, read("vicuna"), ("user", "Hi!"), ("system", "42"))


def test_a_file_takes_the_place_of_the_models_own(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    engine = opened(
        EngineConfig(
            model=write_tiny_gguf(tmp_path / "tiny.gguf"), chat_template=str(path), kv_cells=64, slots=1
        )
    )
    request = Request(id="r", sampling=SamplingParams(max_tokens=8), prompt="Hi")
    tokens = engine.encode(request).tolist()
    assert b"".join(engine.model.piece(token, special=True) for token in tokens) == b"<s>[Hi]"


def test_what_is_no_template(tmp_path: Path, bare: Model) -> None:
    with pytest.raises(ModelLoadError, match=r"^vicunia: neither a file .* that is known: vicuna$"):
        find("vicunia")
    config = EngineConfig(model=str(tmp_path / "missing.gguf"), chat_template="vicunia")
    with pytest.raises(ModelLoadError, match="neither a file with a chat template"):
        load(config)
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    with pytest.raises(ModelLoadError, match=r"latin\.jinja: the chat template cannot be read"):
        read(str(tmp_path / "latin.jinja"))
    (tmp_path / "empty.jinja").write_text("\n")
    with pytest.raises(ModelLoadError, match=r"empty\.jinja: holds no chat template"):
        read(str(tmp_path / "empty.jinja"))
    with pytest.raises(ModelLoadError, match="its chat template cannot be read"):
        PromptEncoder(bare, "{% if %}")
    assert known() == ["vicuna"]


def test_a_model_without_one_is_told_so_at_its_start(
    bare: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        PromptEncoder(bare)
        PromptEncoder(Model(write_tiny_gguf(tmp_path / "other.gguf", chat_template=None)))
        PromptEncoder(bare, read("vicuna"))
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        f"{bare.path}: no chat template in it: set chat_template (its name asks for vicuna)"
    )
    assert "a file, or one of vicuna" in second
