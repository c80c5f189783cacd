"""The `medusaq` commands that documents show exist, with the options that they are given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli.main import app
from tests.project.documents.markdown import DOCUMENTS
from tests.support.workers import ROOT

BLOCK = re.compile(r"```(?:sh|console)\n(.*?)```", re.DOTALL)
PROMPT = re.compile(r"^\$ ", re.MULTILINE)
START = re.compile(r"(?:^|\s)(?:\S*/)?medusaq$")
ENDS = {"|", "&", "&&", ";", ">"}
NOT_BEFORE = {"namespace", "-n"}  # of kubectl, whose namespace has the same name
COMMANDS = typer.main.get_command(app)


def shown(text: str) -> list[list[str]]:
    """The words behind `medusaq` of each command; of a console, lines behind a prompt alone."""
    found = []
    for block in BLOCK.findall(text):
        lines = block.replace("\\\n", " ").splitlines()
        if PROMPT.search(block):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a quoted text of several lines
                continue
            for place, word in enumerate(words):
                if START.search(word) and words[place - 1] not in NOT_BEFORE:
                    rest = words[place + 1 :]
                    end = next((n for n, each in enumerate(rest) if each in ENDS), len(rest))
                    found.append(rest[:end])
    return found


def wrong(words: list[str]) -> str:
    """What of a command does not exist; empty if all of it does."""
    command: Any = COMMANDS  # a group of typer, whose click is its own
    options = {"--help", "-h", "--version"}
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            command = command.commands.get(word)
            if command is None:
                return word
            options |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        elif word.startswith("-") and word != "-" and word.partition("=")[0] not in options:
            return word
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_shown_exists(path: Path) -> None:
    told = {" ".join(words): wrong(words) for words in shown(path.read_text(encoding="utf-8"))}
    assert not {words: what for words, what in told.items() if what}


def test_they_are_found() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ["run", "three.csv", "-o", "labelled.csv", "--schema"] in [words[:5] for words in shown(page)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("medusaq run a.csv -o b --column c", ""),
        ("medusaq rum a.csv", "rum"),
        ("A=1 .venv/bin/medusaq up --no-such-option", "--no-such-option"),
        ("medusaq keys create me > key", ""),
        ("medusaq keys make me", "make"),
    ],
)
def test_what_does_not_exist_is_named(line: str, what: str) -> None:
    [words] = shown(f"```sh\n{line}\n```")
    assert wrong(words) == what
