"""The examples of the documents, each run as a program against a gateway with the default model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.default_model import serving
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import ROOT

pytestmark = pytest.mark.stack
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = ("README.md", "docs/reference/python.md")
EXAMPLES = [
    (page, place, code)
    for page in PAGES
    for place, code in enumerate(BLOCK.findall((ROOT / page).read_text(encoding="utf-8")))
]


@pytest.fixture(scope="module")
def url(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = fast_settings(redis_server, lease_ms=10_000)
    with serving(settings, tmp_path_factory.mktemp("examples"), io=True) as gateway:
        yield gateway.url


@pytest.mark.parametrize(("page", "place", "code"), EXAMPLES, ids=lambda value: str(value)[-20:])
def test_an_example_runs(page: str, place: int, code: str, url: str, tmp_path: Path) -> None:
    assert "from medusaq import" in code, (page, place)
    shutil.copy(ROOT / "examples" / "reviews.csv", tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "MEDUSAQ_URL": url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_there_are_examples_on_every_page() -> None:
    assert {page for page, _, _ in EXAMPLES} == {*PAGES}
