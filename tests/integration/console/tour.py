"""What a person does in the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import expect

DROP = """([selector, name, bytes]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name));
    document.querySelector(selector).dispatchEvent(
        new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


def file(name: str, content: bytes) -> Any:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def drop(page: Any, name: str, content: bytes) -> None:
    page.click("nav >> text=New batch")
    page.wait_for_selector(".drop")
    page.evaluate(DROP, [".drop", name, [*content]])
    page.wait_for_selector(".preview-row .prompt")


def begin_with_the_example(page: Any) -> None:
    page.click("button:text-is('Begin with an example')")
    page.wait_for_selector(".preview-row .prompt >> nth=2")


def write_template(page: Any, text: str, column: str) -> None:
    """The text, and a column by its chip."""
    page.fill("label:has-text('Template') >> textarea", text)
    page.click(f".chip:text-is('{column}')")
    expect(page.locator(".preview-row .prompt").first).to_contain_text(text.partition("{{")[0])


def choose_field(page: Any, name: str, choices: str) -> None:
    page.check("input[value=fields]")
    page.fill("[name=field]", name)
    page.fill("[name=choices]", choices)


def fields_by_pattern(page: Any, patterns: dict[str, str]) -> None:
    page.check("input[value=fields]")
    for place, (name, pattern) in enumerate(patterns.items()):
        if place:
            page.click("button:text-is('Add a field')")
        row = page.locator(".field-row").nth(place)
        row.locator("[name=field]").fill(name)
        row.locator("[name=type]").select_option("pattern")
        row.locator("[name=pattern]").fill(pattern)


def try_rows(page: Any) -> None:
    page.click("button:text-is('Try three rows')")
    page.wait_for_selector(".preview-row .answer:not(.muted) >> nth=2")


def run(page: Any) -> None:
    page.click("button.primary:has-text('Run')")
    page.wait_for_selector(".bar-track")


def wait_for_end(page: Any) -> None:
    page.wait_for_selector("main h1 + .pill.good, main h1 + .pill.bad")
    page.wait_for_selector(r"text=/of \d+ lines?/")


def download(page: Any, kind: str) -> Path:
    with page.expect_download() as waiting:
        page.click(f"button:text-is('{kind}')")
    return Path(waiting.value.path())


def expect_refusal(page: Any) -> None:
    """The browser notes a status of 400, which is no fault of the page."""
    page.problems[:] = [problem for problem in page.problems if "status of 400" not in problem]
