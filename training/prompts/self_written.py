"""Prompts that the model writes itself, as the user's turn of a conversation in which nothing else was said.

After Zhangchen Xu et al. 2024 (Magpie, https://arxiv.org/abs/2406.08464). They are more different from each
other than composed ones.

    python -m training.prompts.self_written --count 8000 --out prompts.jsonl [--model MODEL.gguf]

After an interruption the same command continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count as numbers
from pathlib import Path

from rich.console import Console

from common.unicode import is_unicode
from engine import Completion, EngineConfig, EngineError, EngineService, Request, SamplingParams, load
from engine.llama.model import Model, default_model_path
from engine.text.prompt_encoder import PromptEncoder
from training.base.errors import PromptsError, TrainingError
from training.base.progress import Display
from training.prompts.prompts import read_prompts

CATEGORY = "self-written"
MARK = "Q7f3Zk9"  # a user's turn that no template contains
TEMPERATURE, TOP_P = 1.0, 0.95
MAX_TOKENS = 256  # one that is longer is left out
LEAST_CHARACTERS = 8
SLOTS = 16
WAITING = 4  # beyond the running ones, so that a free slot never waits
PATIENCE = 20  # attempts for each prompt: more say that this model writes none


def beginning(model: Model) -> str:
    """What a conversation has before the text of the user's first turn. Raises PromptsError."""
    if not model.chat_template:
        raise PromptsError(f"{model.path}: a model without a chat template writes no prompts: give some")
    encoder = PromptEncoder(model)
    whole = encoder.encode(_request(MARK)).tolist()
    text = b"".join(model.piece(token, special=True) for token in whole).decode(errors="replace")
    before, mark, _ = text.partition(MARK)
    for start in (before, before.removeprefix(model.bos_text)):  # the tokenizer may add the latter
        if mark and start not in ("", model.bos_text):
            tokens = encoder.encode(_request(start, raw=True)).tolist()[:-1]  # the last may end elsewhere
            if tokens == whole[: len(tokens)]:
                return start
    raise PromptsError(f"{model.path}: its chat template begins with the user's text: give prompts")


def _request(prompt: str, raw: bool = False) -> Request:
    return Request(id="", prompt=prompt, raw=raw, sampling=SamplingParams())


def write(path: Path, count: int, model: str, console: Console, slots: int = SLOTS) -> None:
    """Append prompts to a JSON lines file until it has so many. Raises TrainingError and EngineError."""
    known = _known(path)
    if len(known) >= count:
        return
    before = beginning(Model(model, vocabulary_only=True))
    service = load(EngineConfig(model=model, slots=slots, speculation=False))
    try:
        with (
            path.open("a", encoding="utf-8") as file,
            Display(console, "prompts", count, len(known)) as shown,
        ):
            for tried, text in enumerate(_texts(service, before, len(known) * PATIENCE, slots), 1):
                if tried > count * PATIENCE:
                    raise PromptsError(f"{model} has written {len(known)} prompts in {tried} attempts")
                if text is None or text in known:
                    continue
                known.add(text)
                file.write(json.dumps({"text": text, "category": CATEGORY}, ensure_ascii=False) + "\n")
                file.flush()
                shown.update(len(known))
                if len(known) == count:
                    return
    except OSError as error:
        raise PromptsError(f"cannot write {path}: {error.strerror}") from error
    finally:
        service.close()


def _known(path: Path) -> set[str]:
    """What the file has. A last line that was cut off is removed."""
    try:
        content = path.read_bytes() if path.exists() else b""
        if not content.endswith(b"\n"):
            content = content[: content.rfind(b"\n") + 1]
            path.write_bytes(content)
    except OSError as error:
        raise PromptsError(f"{path}: {error.strerror}") from error
    return {prompt.text for prompt in read_prompts([path])} if content else set()


def _texts(service: EngineService, before: str, first: int, slots: int) -> Iterator[str | None]:
    """Without end, in the order of their seeds from `first` on; None for one that is no prompt."""
    running: deque[Future[Completion]] = deque()
    for seed in numbers(first):
        sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=seed, temperature=TEMPERATURE, top_p=TOP_P)
        request = Request(id=str(seed), prompt=before, raw=True, sampling=sampling)
        running.append(service.submit(request))
        if len(running) == slots + WAITING:
            yield _prompt(running.popleft().result())


def _prompt(written: Completion) -> str | None:
    text = written.text.strip()
    ended = written.finish_reason == "stop"
    return text if ended and len(text) >= LEAST_CHARACTERS and is_unicode(text) else None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.prompts.self_written", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file to write")
    parser.add_argument("--model", default=default_model_path(), help="GGUF path (default: the packaged one)")
    options = parser.parse_args()
    try:
        write(options.out, options.count, options.model, Console(stderr=True))
    except (TrainingError, EngineError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
