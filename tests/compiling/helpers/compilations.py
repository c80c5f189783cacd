"""Compilations of a tiny model, and what they say of their steps."""

from __future__ import annotations

from pathlib import Path

from compiling.result.compilation import Options

TYPES = ("q8_0", "q4_0")


class Steps:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.said: list[str] = []
        self.planned = 0

    def plan(self, steps: int) -> None:
        self.planned = steps

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def note(self, share: float) -> None:
        assert 0 <= share <= 1

    def say(self, line: str) -> None:
        self.said.append(line)


def given(models: Path, folder: Path) -> Options:
    return Options(
        source=str(models / "tiny.f32.gguf"),
        folder=folder,
        types=TYPES,
        text=models / "text",
        rounds=1,
        threads=1,
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
