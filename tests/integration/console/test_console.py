"""The console in a real browser, from the dropped file to the downloaded columns."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import ExitStack
from typing import Any

import duckdb
import httpx
import openpyxl
import pytest
from playwright.sync_api import expect

from api.console.pages import FOLDER, PAGES, POLICY
from cli.views.time_left import Progress, TimeLeft
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.cli.views.batches import BATCHES
from tests.integration.console import tour
from tests.integration.console.stack import page_of
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import ROOT, Workers, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
MOST_BYTES = 200_000
LATE_REFUSAL = """async () => {
    const app = document.querySelector("script[type=module]").src;
    const api = await import(app.replace("app.js", "parts/api.js"));
    await api.get("/v1/models").catch(() => {});
}"""
TIME_LEFT = """async ([looks, total]) => {
    const app = document.querySelector("script[type=module]").src;
    const { TimeLeft } = await import(app.replace("app.js", "parts/time_left.js"));
    const left = new TimeLeft(0, { done: 0, tokens: 0, running: 0, runningTokens: 0 });
    return looks.map(([at, done, tokens, running, runningTokens]) => {
        left.note(at, { done, tokens, running, runningTokens }, total);
        return left.seconds(at);
    });
}"""
REVIEWS = """review,product,stars
It broke at once,lamp,1
It worked at once,cup,5
It shone at once,pen,4
It fell at once,bag,2
"""


def no_scrolling_sideways(page: Any) -> None:
    wide, shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= shown


def test_it_is_small_and_loads_nothing_from_elsewhere() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.*")}
    assert sum(len(text.encode()) for text in texts.values()) < MOST_BYTES
    assert len(PAGES) == len(texts)
    assert all(len(text.splitlines()) < 400 for text in texts.values())
    assert "unsafe" not in POLICY
    for path, text in texts.items():
        assert "innerHTML" not in text, path
        assert "https://" not in text, path


def workbook() -> bytes:
    """REVIEWS as a spreadsheet program stores it."""
    book, content = openpyxl.Workbook(), io.BytesIO()
    for row in csv.reader(io.StringIO(REVIEWS)):
        book.active.append([int(value) if value.isdigit() else value for value in row])
    book.save(content)
    return content.getvalue()


def test_from_a_dropped_table_to_downloaded_columns(page: Any) -> None:
    """On a wide screen of a CSV file, on a narrow one of an XLSX file."""
    if page.viewport_size["width"] > 1000:
        tour.drop(page, "reviews.csv", REVIEWS.encode())
    else:
        tour.drop(page, "reviews.xlsx", workbook())
    assert "4 rows, 3 columns" in page.inner_text("main")
    tour.write_template(page, "Good or bad? ", "review")
    assert page.inner_text(".preview-row >> nth=1 >> .prompt") == "Good or bad? It worked at once"
    tour.choose_field(page, "mood", "good, bad")
    tour.try_rows(page)
    assert page.inner_text(".preview-row >> nth=0 >> .answer") in ('mood: "good"', 'mood: "bad"')
    no_scrolling_sideways(page)
    tour.run(page)
    tour.wait_for_end(page)
    assert "4 of 4 lines" in page.inner_text("main")
    expect(page.locator("td.answer")).to_have_count(4)
    for width in (page.viewport_size["width"], 390):
        page.set_viewport_size({"width": width, "height": 844})
        no_scrolling_sideways(page)
    [head, *rows] = csv.reader(io.StringIO(tour.download(page, "CSV").read_text()))
    assert head == ["review", "product", "stars", "mood", "finish_reason", "error"]
    assert [row[1] for row in rows] == ["lamp", "cup", "pen", "bag"]
    assert {row[3] for row in rows} <= {"good", "bad"}
    lines = [json.loads(line) for line in tour.download(page, "JSON lines").read_text().splitlines()]
    assert [line["mood"] for line in lines] == [row[3] for row in rows]
    parquet = tour.download(page, "Parquet")
    found = duckdb.sql(f"SELECT mood FROM read_parquet('{parquet}')").fetchall()
    assert [mood for (mood,) in found] == [row[3] for row in rows]


def test_failures_have_an_example_and_can_be_run_again(page: Any) -> None:
    content = b"review\nfine\n" + b'"' + b"word " * 12_000 + b'"\n'
    tour.drop(page, "long.csv", content)
    tour.write_template(page, "", "review")
    tour.run(page)
    page.wait_for_selector("text=Retry failures")
    failures = page.inner_text("section:has(h2:text-is('Failures'))")
    assert "context_length_exceeded" in failures
    assert "2: " in failures, "the row of the example"
    before = page.url
    page.click("text=Retry failures")
    page.wait_for_url(lambda url: url != before)
    page.wait_for_selector("dt:text-is('Retry of')", state="attached")
    tour.wait_for_end(page)
    assert "1 of 1 line" in page.inner_text("main")


def test_a_running_batch_shows_its_progress_and_can_be_cancelled(page: Any) -> None:
    rows = "".join(f"Write a long story about the number {n}\n" for n in range(300))
    tour.drop(page, "stories.csv", f"prompt\n{rows}".encode())
    tour.run(page)
    page.wait_for_selector("text=/[0-9]+ of 300 lines, [0-9]+ running, [0-9,]+ tokens, [0-9.]+\\/s$/")
    assert page.get_attribute("[role=progressbar]", "aria-valuenow") is not None
    expect(page.locator("td.answer").first).not_to_be_empty(timeout=60_000)
    page.click("button:text-is('Cancel')")
    page.wait_for_selector(".pill:text-is('cancelled')")
    page.wait_for_selector(r"text=/of 300 lines, \d+ cancelled/")
    assert "failed" not in page.inner_text("main")
    assert not page.is_visible("h2:text-is('Failures')")
    assert page.evaluate("document.querySelector('.bar-failed').style.width") == "0%"
    assert page.is_visible("button:text-is('Run the rest')")


def first_page(chromium: Any, gateway: GatewayProcess, *names: str) -> None:
    """Opens it, with batches of these names, newest first."""
    page = page_of(chromium, gateway.url)
    page.wait_for_selector(".figures dd")
    expect(page.locator(".batch-row")).to_have_count(len(names))
    assert (page.refused, page.problems) == ([], [])
    expect(page.locator(".batch-row .name")).to_have_text([*names])
    page.context.close()


def test_the_first_page_asks_for_nothing_that_is_not_there(
    chromium: Any, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a fresh state, and after batches whose files were deleted, as those of `medusaq run` are."""
    folder = tmp_path_factory.mktemp("fresh")
    settings = fast_settings(redis_server, files=str(folder / "files"))
    with ExitStack() as stack:
        gateway = GatewayProcess(settings, folder)
        stack.callback(gateway.stop)
        workers = Workers(folder)
        stack.callback(workers.close)
        first_page(chromium, gateway)
        workers.io(settings)
        workers.model(settings)
        for name in ("first.csv", "second.csv"):
            run_and_delete_files(gateway.http, name)
        first_page(chromium, gateway, "second.csv", "first.csv")


def run_and_delete_files(http: httpx.Client, name: str) -> None:
    form = {"file": (name, REVIEWS.encode())}
    made = http.post("/v1/files", files=form, data={"purpose": "batch"}).json()["id"]
    body = {"input_file_id": made, "endpoint": "/v1/jobs", "template": "{{ review }}"}
    batch = http.post("/v1/batches", json={**body, "completion_window": "24h"}).json()["id"]
    wait_until(lambda: http.get(f"/v1/batches/{batch}").json()["status"] == "completed")
    ended = http.get(f"/v1/batches/{batch}").json()
    for file in (made, ended["output_file_id"]):
        assert http.delete(f"/v1/files/{file}").status_code == 200


@pytest.mark.parametrize("name", BATCHES)
def test_the_time_left_is_that_of_the_command(page: Any, name: str) -> None:
    batch = BATCHES[name]
    total = batch[-1].progress.done + batch[-1].progress.running
    left, expected, looks = TimeLeft(0.0, Progress(0, 0, 0)), [], []
    for look in batch:
        left.note(look.at, look.progress, total)
        expected.append(left.seconds(look.at))
        looks.append([look.at, look.progress.done, look.progress.tokens, look.progress.running])
        looks[-1].append(look.progress.running_tokens)
    shown = page.evaluate(TIME_LEFT, [looks, total])
    assert shown == [None if seconds is None else pytest.approx(seconds) for seconds in expected]
    assert any(shown)


def test_a_file_of_requests_runs_as_it_is(page: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    page.click("nav >> text=New batch")
    page.set_input_files("input[type=file]", files=[tour.file("lines.jsonl", json.dumps(line).encode())])
    page.click("button:text-is('Run 1 request')")
    tour.wait_for_end(page)
    [answer] = tour.download(page, "JSON lines").read_text().splitlines()
    assert json.loads(answer)["custom_id"] == "a"


def test_a_table_that_cannot_be_read_says_why(page: Any) -> None:
    page.click("nav >> text=New batch")
    page.set_input_files("input[type=file]", files=[tour.file("torn.csv", b"a,b\n1\n")])
    assert "row 1 (line 2) has 1 value" in page.inner_text(".notice")
    tour.expect_refusal(page)


def test_the_example_is_that_of_the_documents(page: Any) -> None:
    examples = ROOT / "examples"
    page.click("nav >> text=New batch")
    with page.expect_request(
        lambda request: request.url.endswith("preview") and "schema" in request.post_data
    ) as sent:
        tour.begin_with_the_example(page)
    asked = sent.value.post_data_json
    assert asked["template"] == (examples / "notes.txt").read_text(encoding="utf-8").rstrip("\n")
    assert asked["schema"] == json.loads((examples / "notes.json").read_text(encoding="utf-8"))
    with (examples / "notes.csv").open(encoding="utf-8", newline="") as file:
        notes = [row["note"] for row in csv.DictReader(file)]
    shown = page.locator(".preview-row .prompt").all_inner_texts()
    assert [text.partition("\n")[0] for text in shown] == notes[:3]
    tour.try_rows(page)
    for answer in page.locator(".preview-row .answer").all_inner_texts():
        assert re.fullmatch(r'amount: "\$\d+\.\d\d"\ndate: "[A-Z][a-z]+ \d+, \d{4}"', answer)
    no_scrolling_sideways(page)


def test_a_column_that_does_not_exist_is_named(page: Any) -> None:
    tour.drop(page, "reviews.csv", REVIEWS.encode())
    page.fill("label:has-text('Template') >> textarea", "{{ revew }}")
    page.wait_for_selector(".notice:has-text('did you mean')")
    tour.expect_refusal(page)


def test_drafted_tokens_are_tinted_by_their_source(page: Any, console: GatewayProcess) -> None:
    page.click("nav >> text=Try")
    page.wait_for_selector("option[value=medusa]:not([disabled])", state="attached")
    page.select_option("[name=decoding]", "medusa")
    page.fill("[name=max_tokens]", "24")
    page.click("button:text-is('Send')")
    page.wait_for_selector(".legend")
    no_scrolling_sideways(page)
    job = console.http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]
    sources = job["result"]["speculation"]["sources"]
    assert page.inner_text(".output").strip() == job["result"]["text"].strip()
    assert sources["medusa"]["accepted"] > 0
    assert job["result"]["finish_reason"] == "length", "a drafted ending is accepted and has no text to tint"
    assert page.locator(".output .draft.medusa").count() == sources["medusa"]["accepted"]


def test_jobs_are_found_opened_and_cancelled(page: Any, console: GatewayProcess) -> None:
    word = f"zebra{page.viewport_size['width']}"
    made = console.http.post("/v1/jobs", json={"prompt": f"count to {word}", "max_tokens": 3}).json()
    busy = {"prompt": "count slowly", "max_tokens": 4000, "ignore_eos": True}
    running = console.http.post("/v1/jobs", json=busy).json()
    page.click("nav >> text=Jobs")
    page.fill("input[type=search]", word)
    page.click("button:text-is('Search')")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.click("tbody a")
    expect(page.locator("main")).to_contain_text(made["id"])
    expect(page.locator("main h1 + .pill.good")).to_be_visible()
    page.click("nav >> text=Jobs")
    page.fill("input[type=search]", running["id"])
    page.click("button:text-is('Search')")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.click(f"[aria-label='Cancel {running['id']}']")
    ended = console.http.get(f"/v1/jobs/{running['id']}", headers={"Prefer": "wait=20"}).json()
    assert ended["status"] == "cancelled"


def test_the_keyboard_is_enough(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
    assert [name for name in reached if name in ("Now", "New batch", "Try", "Jobs")][:4] == [
        "Now",
        "New batch",
        "Try",
        "Jobs",
    ]
    page.focus("nav >> text=Try")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text-is('Try')")
    assert page.evaluate("document.activeElement.id") == "main", "a screen reader goes on in the new view"


@pytest.mark.parametrize("view", ["now", "new", "try", "jobs"])
def test_every_control_has_a_name(page: Any, view: str) -> None:
    page.evaluate(f"location.hash = '#/{view}'")
    page.wait_for_selector("h1")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a")]
            .filter((e) => !e.textContent.trim() && !e.labels?.length && !e.getAttribute("aria-label")
                && e.getAttribute("aria-hidden") !== "true").map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    assert page.locator("h1").count() == 1


def test_an_unknown_address_is_a_page_for_people_and_json_for_programs(
    page: Any, console: GatewayProcess
) -> None:
    page.goto(f"{console.url}/nowhere")
    assert page.inner_text("h1") == "There is nothing at this address"
    page.click("text=Open the console")
    page.wait_for_selector(".figures")
    assert console.http.get("/nowhere").json()["error"]["code"] == "not_found"
    page.problems[:] = [problem for problem in page.problems if "404" not in problem]


def test_a_key_is_asked_for_and_forgotten_with_the_tab(
    chromium: Any, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = fast_settings(redis_server)
    store = JobStore(settings)
    _, secret = KeyStore(store.db).create("person", Limits())
    store.close()
    gateway = GatewayProcess(settings, tmp_path_factory.mktemp("keyed"))
    page = page_of(chromium, gateway.url)
    page.wait_for_selector("h1:text-is('This gateway needs a key')")
    page.fill("input[type=password]", "mq_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector(".notice:has-text('unknown')")
    page.fill("input[type=password]", secret)
    page.evaluate(LATE_REFUSAL)
    assert "unknown" in page.inner_text(".notice")
    page.focus("input[type=password]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".figures dd")
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []
    page.reload()
    page.wait_for_selector(".figures dd")
    other = page.context.new_page()
    other.goto(gateway.url)
    other.wait_for_selector("h1:text-is('This gateway needs a key')")
    page.click("text=Forget the key")
    page.wait_for_selector("h1:text-is('This gateway needs a key')")
    page.goto(f"{gateway.url}/nowhere")
    assert page.inner_text("h1") == "This address needs an API key"
    page.context.close()
    gateway.stop()
