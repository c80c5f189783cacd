"""What the documents name exists, here and for whoever clones this."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tasks.setting_names import ENV_PREFIX, USERS
from tasks.settings import Settings

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_setting_that_is_named_is_one(path: Path) -> None:
    named = set(re.findall(rf"{ENV_PREFIX}([A-Z_]+)\b", path.read_text(encoding="utf-8")))
    others = {name.removeprefix(ENV_PREFIX) for name in USERS}
    assert named <= {name.upper() for name in Settings.model_fields} | others


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target, anchor in re.findall(
        r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")
    ):
        found = path.parent / target if target else path
        assert found.exists(), target
        if anchor:
            assert anchor in _anchors(found), anchor


def _anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_no_link_into_somebodys_machine_is_kept() -> None:
    """An environment that is one, say: elsewhere it leads nowhere, and nothing can be installed."""
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    links = [line.partition("\t")[2] for line in listed.stdout.splitlines() if line.startswith("120000")]
    assert not links


def test_every_test_that_the_chaos_page_names_is_in_its_file() -> None:
    text = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8")
    for cited in re.findall(r"((?:`test_\w+`(?:, )?)+) \(\[\w+\.py\]\(\.\./([\w/.]+)\)\)", text):
        code = (ROOT / cited[1]).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"test_\w+", cited[0]) if f"def {name}(" not in code]
        assert not missing, cited[1]
