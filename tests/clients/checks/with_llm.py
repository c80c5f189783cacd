"""llm, the command: a model of extra-openai-models.yaml, with a schema and with tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import MODEL, QUESTION, URL, run

folder = Path(tempfile.mkdtemp())
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: served\n  model_name: {MODEL}\n  api_base: {URL}\n"
    "  supports_schema: true\n  supports_tools: true\n"
)
ENV = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}
PLUS = 'def add(a: int, b: int) -> int:\n    """Add two numbers."""\n    return a + b'


def llm(*options: str) -> str:
    command = [sys.executable, "-m", "llm", "-m", "served", "-o", "max_tokens", "200", *options]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def text() -> None:
    assert llm(QUESTION) == llm("--no-stream", QUESTION) != ""


def schema() -> None:
    assert json.loads(llm("--schema", "name, age int", QUESTION)).keys() == {"name", "age"}


def tools() -> None:
    assert llm("--functions", PLUS, "--chain-limit", "2", "Say hello.")


run({"text, whole and streamed": text, "`--schema`": schema, "tools offered": tools})
