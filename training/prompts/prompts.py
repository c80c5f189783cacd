"""Composes training prompts from topics, tasks and forms.

The kinds of tasks are those of Spec-Bench and one more; its texts are not used.

python -m training.prompts.prompts --count 12000 --out prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from common.atomic_write import atomic_write
from common.unicode import is_unicode
from training.base.errors import PromptsError
from training.prompts import vocabulary as m
from training.prompts.foreign_sentences import sentence
from training.prompts.passages import passage, person
from training.prompts.puzzles import arithmetic, mathematics, reasoning

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DEFAULT_COUNT = 12_000  # with about 100 tokens per answer, more than a million tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn, and the kind of task it is."""

    text: str
    category: str


def writing(rng: Random) -> str:
    form, tone, topic = rng.choice(m.FORMS), rng.choice(m.TONES), rng.choice(m.TOPICS)
    who, place = rng.choice(m.JOBS), rng.choice(m.PLACES)
    return rng.choice(
        (
            f"Write a {tone} {form} about {topic}.",
            f"Write a {form} about a {who} in {place} and {topic}.",
            f"Compose a {tone} {form} for {rng.choice(m.AUDIENCES)} on the subject of {topic}.",
            f"Draft an email from {person(rng)} to a {who} about {topic}. Keep it {tone}.",
            f"Describe {place} {rng.choice(('at night', 'in winter', 'in the rain', 'on market day'))} in "
            f"a {tone} way.",
            f"Write the opening paragraph of a novel in which a {who} discovers {topic}.",
            f"Tell me a {tone} story about a {rng.choice(m.ANIMALS)} and a {who}.",
            f"Help me write a {form}. The subject is {topic}, and the tone should be {tone}.",
            f"Give me five titles for a {form} about {topic}, and write the first lines of the best one.",
            f"Write a persuasive essay arguing that {topic} should be taught in every school.",
        )
    )


def roleplay(rng: Random) -> str:
    character, topic = rng.choice(m.CHARACTERS), rng.choice(m.TOPICS)
    return rng.choice(
        (
            f"Pretend to be {character}. What do you think of {topic}?",
            f"You are {character}. Explain {topic} to {rng.choice(m.AUDIENCES)}.",
            f"Imagine you are {character} and I am a {rng.choice(m.JOBS)}. Start a conversation with me "
            f"about {topic}.",
            f"Act as {character} and give me advice about {topic}.",
            f"Play the role of a {rng.choice(m.JOBS)} interviewing {character} about {topic}.",
            f"As {character}, describe an ordinary day in {rng.choice(m.PLACES)}.",
        )
    )


def coding(rng: Random) -> str:
    language, task = rng.choice(m.LANGUAGES), rng.choice(m.CODE_TASKS)
    return rng.choice(
        (
            f"Write a {language} function that {task}.",
            f"Write a {language} program that {task}, and explain how it works.",
            f"How do I write {language} code that {task}? Please add comments.",
            f"Implement a function in {language} that {task}, with tests.",
            f"Explain step by step how a program that {task} works, then show it in {language}.",
            f"What is the time complexity of a function that {task}? Show an efficient version in "
            f"{language}.",
            f"Write an SQL query that lists all {rng.choice(m.JOBS)}s in {rng.choice(m.PLACES)} older than "
            f"{rng.randint(20, 60)}, ordered by name.",
            f"Write an HTML page about {rng.choice(m.TOPICS)} with a heading, a list and a link.",
        )
    )


def explaining(topics: tuple[str, ...]) -> Callable[[Random], str]:
    def prompt(rng: Random) -> str:
        topic, other = rng.sample(topics, 2)
        place = rng.choice(m.COUNTRIES)
        return rng.choice(
            (
                f"Explain {topic} to {rng.choice(m.AUDIENCES)}.",
                f"What are the most important facts about {topic}?",
                f"What is the connection between {topic} and {other}?",
                f"Compare {topic} and {other}.",
                f"Give {rng.randint(3, 8)} {rng.choice(('reasons', 'examples', 'facts', 'questions'))} "
                f"about {topic}.",
                f"How has {topic} changed our understanding of {other}?",
                f"What role has {topic} played in {place}?",
                f"Describe the main ideas behind {topic} and why they matter today.",
                f"What are common misunderstandings about {topic}?",
                f"Design a short lesson about {topic} for {rng.choice(m.AUDIENCES)}.",
                f"What would happen without {topic}?",
            )
        )

    return prompt


def question(rng: Random) -> str:
    topic, country = rng.choice(m.TOPICS), rng.choice(m.COUNTRIES)
    animal, goods, job = rng.choice(m.ANIMALS), rng.choice(m.GOODS), rng.choice(m.JOBS)
    return rng.choice(
        (
            f"What is {topic}?",
            f"Why is {topic} important?",
            f"who first wrote about {topic}",
            f"when did {topic} become important in {country}",
            f"What is the capital of {country}, and what is it famous for?",
            f"what do people in {country} usually eat for {rng.choice(('breakfast', 'lunch', 'dinner'))}",
            f"which language is spoken in {country}",
            f"how long does a {animal} live",
            f"where do you find a {animal} in {country}",
            f"how many {goods} fit in a box",
            f"what does a {job} do all day",
            f"how much does a {job} earn in {country}",
            f"Who is the most famous {job} from {country}?",
            f"Is it true that {topic} is related to {rng.choice(m.TOPICS)}?",
            f"What is the difference between a {job} and a {rng.choice(m.JOBS)}?",
            f"How can I get better at {rng.choice(m.EVERYDAY)}?",
            f"List {rng.randint(3, 7)} things to see in {rng.choice(m.PLACES)}.",
        )
    )


def summarization(rng: Random) -> str:
    texts = " ".join(passage(rng).text for _ in range(rng.choice((1, 1, 2))))
    ask = rng.choice(
        (
            "Summarize the following text.",
            "Summarize:",
            "Give a summary of this article in two sentences.",
            "What are the key points of this text?",
            f"Sum this up for {rng.choice(m.AUDIENCES)}.",
            "Write a headline and a short summary for this report.",
            "TL;DR",
        )
    )
    return f"{texts}\n\n{ask}" if ask == "TL;DR" or rng.random() < 0.25 else f"{ask}\n\n{texts}"


def extraction(rng: Random) -> str:
    found = passage(rng)
    ask = rng.choice(
        (
            "Extract all names of people and places from the text.",
            "List every number in the text and what it stands for.",
            "Return the main facts as JSON.",
            "Make a table of who, what, when and where.",
            "Which dates, days or years are mentioned?",
            "Rate the mood of this text from 1 to 5 and give a reason.",
            "Name the main topic, the people involved and the outcome.",
            "Extract the facts as a bulleted list.",
            f"Answer in one short sentence: {rng.choice(found.questions)}",
        )
    )
    return f"{ask}\n\n{found.text}" if rng.random() < 0.7 else f"{found.text}\n\n{ask}"


def retrieval(rng: Random) -> str:
    found = [passage(rng) for _ in range(rng.choice((1, 2, 2, 3)))]
    asked = rng.choice(rng.choice(found).questions)
    documents = "\n\n".join(f"[{i}] {p.title}\n{p.text}" for i, p in enumerate(found, 1))
    return rng.choice(
        (
            f"Answer the question using the passages below.\n\n{documents}\n\nQuestion: {asked}",
            f"{documents}\n\nUsing only these documents, answer: {asked}",
            f"Use the following context to answer the question at the end.\n\n{documents}\n\nQuestion: "
            f"{asked}\nAnswer:",
            f"Question: {asked}\n\nSearch results:\n{documents}\n\nAnswer the question and cite the source.",
        )
    )


def translation(rng: Random) -> str:
    language, text = sentence(rng)
    return rng.choice(
        (
            f"Translate {language} to English: {text}",
            f"Translate the following {language} sentence into English.\n\n{text}",
            f"What does this mean in English? {text}",
            f"Translate into English:\n{text}",
            f"Translate into {language}: {rng.choice(passage(rng).questions)}",
        )
    )


COMPOSERS: dict[str, tuple[float, Callable[[Random], str]]] = {
    "writing": (8, writing),
    "roleplay": (5, roleplay),
    "reasoning": (6, reasoning),
    "math": (6, mathematics),
    "coding": (7, coding),
    "extraction": (6, extraction),
    "stem": (7, explaining(m.SCIENCE)),
    "humanities": (7, explaining(m.HUMANITIES)),
    "everyday": (4, explaining(m.EVERYDAY)),
    "qa": (14, question),
    "math_reasoning": (11, arithmetic),
    "summarization": (10, summarization),
    "rag": (9, retrieval),
    "translation": (9, translation),
}  # weight and composer of each category


def compose(count: int, seed: int = 0) -> Iterator[Prompt]:
    """Yield `count` different prompts, fixed by the seed. Every prefix has the same mix of categories."""
    rng = Random(seed)
    seen: set[str] = set()
    weights = [weight for weight, _ in COMPOSERS.values()]
    while len(seen) < count:
        category = rng.choices(list(COMPOSERS), weights)[0]
        text = COMPOSERS[category][1](rng)
        if category != "translation":
            text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
        if text not in seen:
            seen.add(text)
            yield Prompt(text, category)


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> int:
    """Write a JSON lines file atomically; return the number of prompts. Raises PromptsError."""
    lines = [json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "".join(lines), durable=False)
    except OSError as error:
        raise PromptsError(f"cannot write {path}: {error.strerror}") from error
    return len(lines)


def read_prompts(paths: Iterable[Path]) -> list[Prompt]:
    """Prompts from JSON lines (with `prompt`, `text`, or the first of `turns`) or text lines.

    Raises PromptsError.
    """
    prompts = [prompt for path in paths for prompt in _read(path)]
    if not prompts:
        raise PromptsError("the prompt files hold no prompt")
    return prompts


def _read(path: Path) -> Iterator[Prompt]:
    try:
        # splitlines() would also cut at U+2028 and others, which JSON strings may hold
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix.lower() not in JSON_SUFFIXES:
            yield Prompt(line, "")
            continue
        try:
            row = json.loads(line)
            text = row.get("prompt") or row.get("text") or _first_turn(row["turns"])
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise PromptsError(f"{path}, line {number}: no JSON object with prompt, text or turns") from None
        if not isinstance(text, str) or not is_unicode(text):
            raise PromptsError(f"{path}, line {number}: the prompt is not text")
        yield Prompt(text, str(row.get("category", "")))


def _first_turn(turns: Any) -> Any:
    return turns[0] if isinstance(turns, list) else None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.prompts.prompts", description="Compose training prompts."
    )
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file to write")
    options = parser.parse_args()
    try:
        count = write_prompts(options.out, compose(options.count, options.seed))
    except PromptsError as error:
        sys.exit(f"error: {error}")
    print(f"{options.out}: {count} prompts")


if __name__ == "__main__":
    main()
