"""The pictures of the documents: `python -m tests.integration.console.pictures docs/pictures/console`."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from tests.integration.console import tour
from tests.integration.console.stack import browser, page_of
from tests.integration.default_model import serving
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import ROOT

WIDE, NARROW = 1440, 390
HEIGHTS = {WIDE: 900, NARROW: 844}
QUALITY = 82
EXAMPLES = ROOT / "examples"


class Camera:
    """Writes what a page shows, at both widths, whole from top to end."""

    def __init__(self, page: Any, folder: Path) -> None:
        self._page, self._folder = page, folder

    def take(self, name: str, *widths: int) -> None:
        for width in widths or (WIDE, NARROW):
            self._resize(width, HEIGHTS[width])
            whole = self._page.evaluate("document.documentElement.scrollHeight")
            self._resize(width, max(HEIGHTS[width], whole))
            self._page.evaluate("document.activeElement.blur()")
            image = Image.open(io.BytesIO(self._page.screenshot()))
            image.save(self._folder / f"{name}-{width}.webp", quality=QUALITY, method=6)
        self._resize(WIDE, HEIGHTS[WIDE])

    def _resize(self, width: int, height: int) -> None:
        self._page.set_viewport_size({"width": width, "height": height})
        self._page.wait_for_timeout(300)


def take_all(page: Any, folder: Path) -> None:
    camera = Camera(page, folder)
    page.click("nav >> text=New batch")
    camera.take("1-drop", WIDE)
    tour.drop(page, "notes.csv", (EXAMPLES / "notes.csv").read_bytes())
    page.fill(
        "label:has-text('Template') >> textarea", (EXAMPLES / "notes.txt").read_text(encoding="utf-8").strip()
    )
    properties = json.loads((EXAMPLES / "notes.json").read_text(encoding="utf-8"))["properties"]
    tour.fields_by_pattern(page, {name: form["pattern"] for name, form in properties.items()})
    tour.try_rows(page)
    camera.take("2-template")
    tour.run(page)
    page.wait_for_selector("td.answer >> nth=11")
    camera.take("3-running", WIDE)
    tour.wait_for_end(page)
    camera.take("4-batch")
    page.click("nav >> text=Try")
    page.wait_for_selector("option[value=medusa]:not([disabled])", state="attached")
    page.select_option("[name=decoding]", "medusa")
    page.click("button:text-is('Send')")
    page.wait_for_selector(".legend")
    camera.take("try")
    page.click("nav >> text=Jobs")
    page.wait_for_selector("tbody tr")
    camera.take("jobs", WIDE)
    page.click("nav >> text=Now")
    page.wait_for_selector(".batch-row")
    page.emulate_media(color_scheme="dark")
    camera.take("now")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        server = RedisServer(Path(scratch) / "redis")
        server.start()
        try:
            settings = fast_settings(server, lease_ms=10_000, slots=8, files=f"{scratch}/files")
            with serving(settings, Path(scratch), io=True) as gateway, browser() as opened:
                take_all(page_of(opened, gateway.url, WIDE), folder)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
