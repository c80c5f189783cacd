"""A browser in front of a gateway."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ACTION_MS = 90_000  # a model answers beside other tests


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


def page_of(opened: Browser, url: str, width: int = 1440, **options: Any) -> Any:
    """A page of its own, without what others have stored. problems: what the browser complains of.

    refused: status and address of each answer that is an error.
    """
    context = opened.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **options)
    page = context.new_page()
    page.set_default_timeout(ACTION_MS)
    page.problems, page.refused = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda said: said.type in ("error", "warning") and page.problems.append(said.text))
    page.on("request", lambda asked: asked.url.startswith((url, "blob:")) or page.problems.append(asked.url))
    page.on("response", lambda got: got.status >= 400 and page.refused.append(f"{got.status} {got.url}"))
    page.goto(url)
    return page
