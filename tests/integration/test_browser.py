"""The pages that people look at, in a real browser."""

from __future__ import annotations

import shutil
import subprocess

import httpx
import pytest

from tests.integration.secured import FLOWER_PASSWORD, System
from tests.workers import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-gpu",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--dump-dom",
]

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


def opened(url: str, profile: str) -> tuple[str, str]:
    """The page as it stands after its scripts, and what the browser complained of."""
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_docs(system: System, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Swagger UI comes from the gateway, and our policy must not stand in its way."""
    page, complaints = opened(f"{system.url}/docs", str(tmp_path_factory.mktemp("profile")))
    assert "<title>medusaq - API</title>" in page
    assert 'class="opblock' in page
    assert "/v1/jobs/{job_id}/cancel" in page.replace("\u200b", "")
    assert "Content Security Policy" not in complaints


def test_flower(system: System, tmp_path_factory: pytest.TempPathFactory) -> None:
    with httpx.Client(base_url=system.flower, auth=("me", FLOWER_PASSWORD)) as flower:
        wait_until(lambda: len(flower.get("/api/workers", params={"refresh": "1"}).json()) == 2, 20)
    inside = system.flower.replace("://", f"://me:{FLOWER_PASSWORD}@")
    page, _ = opened(f"{inside}/workers", str(tmp_path_factory.mktemp("profile")))
    assert "worker-" in page
    refused, _ = opened(f"{system.flower}/workers", str(tmp_path_factory.mktemp("profile")))
    assert "worker-" not in refused
