"""The pages that people look at, in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.integration.secured import FLOWER_PASSWORD, System
from tests.support.workers import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu"]
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


def ran(system: System, prompt: str = "hi") -> str:
    """The id of a job that has ended."""
    headers = {"Authorization": f"Bearer {system.key}", "Prefer": "wait=10"}
    return str(httpx.post(f"{system.url}/v1/jobs", json={"prompt": prompt}, headers=headers).json()["id"])


def test_the_docs(system: System, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rendered from our document, by scripts that our policy lets load."""
    html = httpx.get(f"{system.url}/docs").text
    page, complaints = opened(f"{system.url}/docs", str(tmp_path_factory.mktemp("profile")))
    assert "Content Security Policy" not in complaints
    operations = re.findall(r'data-path="([^"]+)"', page)
    assert {"/v1/jobs", "/v1/batches", "/v1/webhooks/secret"} <= set(operations)
    assert "data-path" not in html, "it is what the scripts made"


def test_flower(system: System, tmp_path_factory: pytest.TempPathFactory) -> None:
    with httpx.Client(base_url=system.flower, auth=("me", FLOWER_PASSWORD)) as flower:
        wait_until(lambda: len(flower.get("/api/workers", params={"refresh": "1"}).json()) == 2)
    inside = system.flower.replace("://", f"://me:{FLOWER_PASSWORD}@")
    page, _ = opened(f"{inside}/workers", str(tmp_path_factory.mktemp("profile")))
    assert "worker-" in page
    job = ran(system)
    with httpx.Client(base_url=system.flower, auth=("me", FLOWER_PASSWORD)) as flower:
        wait_until(lambda: flower.get("/api/tasks").json().get(job, {}).get("state") == "SUCCESS")
    tasks, _ = opened(f"{inside}/tasks", str(tmp_path_factory.mktemp("profile")))
    for shown in (job, "SUCCESS", "tok/s"):
        assert shown in tasks
    refused, _ = opened(f"{system.flower}/workers", str(tmp_path_factory.mktemp("profile")))
    assert "worker-" not in refused


def ran_batch(system: System, lines: int) -> str:
    """The id of a batch that has ended."""
    body = "".join(f'{{"prompt": "line {n}"}}\n' for n in range(lines))
    with httpx.Client(base_url=system.url, headers={"Authorization": f"Bearer {system.key}"}) as client:
        file = client.post("/v1/files", files={"file": ("a.jsonl", body)}, data={"purpose": "batch"}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/jobs", "completion_window": "24h"}
        batch = str(client.post("/v1/batches", json=asked).json()["id"])
        wait_until(lambda: client.get(f"/v1/batches/{batch}").json()["status"] == "completed")
    return batch


def test_the_tasks_of_flower_fit_a_small_window(system: System) -> None:
    batch = ran_batch(system, 300)
    job = ran(system, "A long prompt, " * 9 + "tokens=20 steps=12 drafted=medusa:10:6,lookup:4:1 delay=0.2")
    with httpx.Client(base_url=system.flower, auth=("me", FLOWER_PASSWORD)) as flower:
        wait_until(lambda: flower.get("/api/tasks").json().get(job, {}).get("state") == "SUCCESS")
        assert "lookup 25% accepted" in flower.get(f"/api/task/info/{job}").json()["result"], "whole"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        account = {"username": "me", "password": FLOWER_PASSWORD}
        page = browser.new_context(
            viewport={"width": 1280, "height": 800}, http_credentials=account
        ).new_page()
        page.goto(f"{system.flower}/tasks")
        page.wait_for_selector(f"td:has-text('{job}')")
        wide, shown = page.evaluate(
            "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.dataTables_scrollBody'))"
        )
        text = page.inner_text("table:has(td)")
        browser.close()
    assert re.search(rf"win_{batch.removeprefix('batch_')}-\d+\tSUCCESS\t[\d,]+ to [\d,]+\t", text), text
    assert "20 tokens, " in text
    assert "1.67/step" in text
    assert wide <= shown
