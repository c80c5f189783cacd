"""What the documents name exists, here and for whoever clones this."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from api.app import create_app
from tasks.base.setting_names import ENV_PREFIX, USERS
from tasks.base.settings import Settings
from tasks.schema.job_request import JobRequest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]


@pytest.mark.parametrize("path", [*DOCUMENTS, *FRONT], ids=lambda path: path.stem)
def test_every_setting_that_is_named_is_one(path: Path) -> None:
    named = set(re.findall(rf"{ENV_PREFIX}([A-Z_]+)\b", path.read_text(encoding="utf-8")))
    others = {name.removeprefix(ENV_PREFIX) for name in USERS}
    assert named <= {name.upper() for name in Settings.model_fields} | others


def test_every_endpoint_is_in_the_reference(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    paths = create_app(Settings(files=str(tmp_path))).openapi()["paths"]
    offered = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(re.findall(r"`((?:GET|POST|DELETE) /[^`]*)`", page)) >= offered
    fields = set(re.findall(r"`(\w+)`", page))
    assert JobRequest.model_fields.keys() <= fields


def test_no_link_into_somebodys_machine_is_kept() -> None:
    """An environment that is one, say: elsewhere it leads nowhere, and nothing can be installed."""
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    links = [line.partition("\t")[2] for line in listed.stdout.splitlines() if line.startswith("120000")]
    assert not links


def test_every_test_that_the_chaos_page_names_is_in_its_file() -> None:
    text = (ROOT / "docs" / "explanation" / "chaos.md").read_text(encoding="utf-8")
    for cited in re.findall(r"((?:`test_\w+`(?:, )?)+) \(\[\w+\.py\]\(\.\./\.\./([\w/.]+)\)\)", text):
        code = (ROOT / cited[1]).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"test_\w+", cited[0]) if f"def {name}(" not in code]
        assert not missing, cited[1]
