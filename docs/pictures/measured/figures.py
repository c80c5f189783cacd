"""What the figures of every chart say of their origin."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a benchmark."""

    processor: str
    cores: int
    date: str
    commit: str
    model: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def origin(self) -> str:
        """What was measured, where and when."""
        code = f", commit {self.commit}" if self.commit else ""
        return f"{self.model}, {self.cores} cores of {self.processor}, {self.date}{code}"
