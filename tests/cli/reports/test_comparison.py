"""`medusaq compare` against a real gateway and worker with scripted heads."""

from __future__ import annotations

import base64
import re
import signal
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.pages import Page, size_of
from tests.cli.helpers.running import Cli, write_jsonl
from tests.support.servers import free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.slow

HEADS = {"SCRIPTED_DRAFT_SOURCES": "medusa,lookup"}
SCRIPT = "tokens=12 steps=4 drafted=lookup:2:1,medusa:8:5 delay=0.3 faster=2 gap=0.25"
HEADER = "prompt decoding tokens seconds tokens/s speed-up tokens/step acceptance heads lookup text"
TIPPED = 'differs from token 12 on: "y" instead of "x11", log-probabilities 0.25 apart'


@pytest.fixture(scope="module")
def worker_env() -> dict[str, str]:
    return HEADS


def speeds(gateway: str, prompt: str, max_tokens: int) -> dict[str, float]:
    """Tokens a second by decoding. The job that only has the prompt computed is left out."""
    jobs = httpx.get(f"{gateway}/v1/jobs").raise_for_status().json()["data"]
    asked = [job for job in jobs if job["request"]["prompt"] == prompt]
    compared = [job for job in asked if job["request"]["max_tokens"] == max_tokens]
    assert (len(asked), len(compared)) == (4, 3)
    return {
        job["request"]["decoding"]: 12
        / (job["result"]["timing"]["total_s"] - job["result"]["timing"]["queue_s"])
        for job in compared
    }


@pytest.mark.stack
def test_table_charts_and_page(in_process: InProcessCli, gateway: str) -> None:
    prompts = [f"the first one {SCRIPT}", f"<b>second</b> &amp; {SCRIPT} differs=1"]
    ended = in_process("compare", *prompts, "--url", gateway, "--max-tokens", "40")
    assert (ended.returncode, ended.stderr) == (0, "")
    head, *lines, last = ended.stdout.splitlines()
    assert head.split() == HEADER.split()
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines[:9]]
    normal, medusa, auto = cells[:3]
    assert normal[0].startswith("the first one tokens=12")
    assert normal[1:3] + normal[5:] == ["normal", "12", "-", "1.00", "-", "-", "-", "-"]
    assert medusa[:2] + medusa[5:] == ["medusa", "12", "3.00", "60%", "5/8", "1/2", "same"]
    assert auto[:2] + auto[5:] == ["auto", "12", "3.00", "60%", "5/8", "1/2", "same"]
    assert cells[7][-3:] == ["10/16", "2/4", "1 of 2 same"]
    told = speeds(gateway, prompts[0], max_tokens=40)
    assert medusa[4] == f"{told['medusa'] / told['normal']:.2f}x"
    each, whole = ["-", "differs at 12", "differs at 12"], ["-", "1 of 2 same", "1 of 2 same"]
    assert [row[-1] for row in cells[3:]] == each + whole
    assert cells[6][0] == "all prompts"
    notes = [f"prompt 2, {way}: {TIPPED}" for way in ("medusa", "auto")]
    assert lines[9:] == notes
    assert last == "charts: compare.png, compare.html"

    png = (in_process.folder / "compare.png").read_bytes()
    assert size_of(png) == (1500, 1125)
    shown = Page((in_process.folder / "compare.html").read_text(encoding="utf-8"))
    assert shown.sources == ["data:image/png;base64," + base64.b64encode(png).decode()]
    assert shown.texts["pre"] == ["the first one"] * 3 + [
        "<b>second</b> &amp;",
        "<b>second</b> &amp; indeed",
        "<b>second</b> &amp; indeed",
    ]
    assert "b" not in shown.tags
    assert shown.texts["h2"][1].startswith("2. <b>second</b> &amp; tokens=12")
    assert [text.strip() for text in shown.texts["th"]] == HEADER.split()
    assert shown.texts["td"].count("differs at 12") == 2
    assert shown.texts["p"][1:] == notes


@pytest.mark.stack
def test_one_job_at_a_time_after_the_prompt_is_computed(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(
        in_process.folder / "p.jsonl",
        [{"prompt": f"in order {SCRIPT}", "temperature": 0.5, "max_tokens": 30, "custom_id": "a"}],
    )
    ended = in_process("compare", "--prompts", "p.jsonl", "--url", gateway, "-o", "a.png", "--html", "b.html")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["a.png", "b.html", "p.jsonl"]
    jobs = httpx.get(f"{gateway}/v1/jobs", params={"limit": 4}).json()["data"][::-1]
    sent = [(job["request"]["decoding"], job["request"]["max_tokens"]) for job in jobs]
    assert sent == [("medusa", 1), ("normal", 30), ("medusa", 30), ("auto", 30)]
    for before, after in pairwise(jobs):
        assert before["finished_at"] <= after["started_at"]
    assert {job["priority"] for job in jobs} == {"interactive"}
    assert {(job["request"]["seed"], job["request"]["temperature"]) for job in jobs} == {(0, 0.5)}
    assert all("logprobs" not in job["request"] for job in jobs), "they take time, and none is needed"


@pytest.mark.stack
def test_prompts_that_fail_do_not_stop_the_others(in_process: InProcessCli, gateway: str) -> None:
    write_jsonl(
        in_process.folder / "p.jsonl",
        [
            {"prompt": "bad fail=odd_one"},
            {"prompt": f"good {SCRIPT}"},
            {"prompt": "x", "max_tokens": 9999},
        ],
    )
    ended = in_process("compare", "--prompts", "p.jsonl", "--url", gateway)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "prompt 1 could not be compared: odd_one: as the script says",
        "prompt 3 could not be compared: max_tokens: 9999 exceeds the model's context of 2048 tokens",
    ]
    assert len(ended.stdout.splitlines()) == 5
    shown = Page((in_process.folder / "compare.html").read_text(encoding="utf-8"))
    assert shown.texts["pre"] == ["good"] * 3
    assert "Not compared: odd_one: as the script says" in shown.texts["p"]

    none = in_process("compare", "fail=odd_one", "--url", gateway, "-o", "none.png")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr.splitlines()[-1] == "error: no prompt could be compared"
    assert not (in_process.folder / "none.png").exists()


@pytest.mark.stack
def test_json_is_compared_though_the_first_job_cuts_it(in_process: InProcessCli, gateway: str) -> None:
    asked = {"prompt": f"as JSON {SCRIPT} needs=9", "response_format": {"type": "json_object"}}
    write_jsonl(in_process.folder / "p.jsonl", [asked])
    ended = in_process("compare", "--prompts", "p.jsonl", "--url", gateway)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split()[-1] for line in ended.stdout.splitlines()[1:4]] == ["-", "same", "same"]


@pytest.mark.stack
def test_an_interrupted_comparison_cancels_its_job(cli: Cli, gateway: str) -> None:
    def job() -> dict[str, Any]:
        [found] = httpx.get(f"{gateway}/v1/jobs", params={"limit": 1}).json()["data"]
        return dict(found)

    running = cli.start("compare", "stop me delay=60", "--url", gateway)
    wait_until(lambda: job()["request"]["prompt"].startswith("stop me") and job()["status"] == "running")
    running.send(signal.SIGTERM)
    assert running.wait() == 143
    assert running.lines == ["interrupted"]
    wait_until(lambda: job()["status"] == "cancelled")
    assert list(cli.folder.iterdir()) == []


@pytest.mark.stack
def test_a_stack_of_its_own(cli: Cli) -> None:
    cli.env |= HEADS
    ended = cli("compare", f"at home {SCRIPT}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("local stack for this command: gateway http://127.0.0.1:")
    assert len(ended.stdout.splitlines()) == 5
    assert cli.processes() == {}
    assert sorted(path.name for path in cli.folder.iterdir()) == ["compare.html", "compare.png"]


@pytest.mark.stack
def test_ctrl_c_stops_the_stack_of_its_own(cli: Cli) -> None:
    running = cli.start("compare", "x delay=60", **HEADS)
    line = running.wait_for("local stack for this command")
    url = line.split()[-1]
    wait_until(lambda: ready(url) and bool(httpx.get(f"{url}/v1/jobs").json()["data"]))
    running.send(signal.SIGINT)
    assert running.wait() == 130
    assert running.lines[-1] == "interrupted"
    assert cli.processes() == {}


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.stack
def test_no_heads_and_no_model_are_one_line(cli: Cli) -> None:
    ended = cli("compare", "x")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[1:] == [
        "error: decoding: 'medusa' needs draft heads, and no live worker has any for its model"
    ]
    cli.env["SCRIPTED_LOAD_ERROR"] = "m.gguf is no GGUF"
    ended = cli("compare", "x")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.splitlines()[-1] == "error: the model cannot be loaded: m.gguf is no GGUF"
    assert list(cli.folder.iterdir()) == []


@pytest.mark.stack
def test_an_unknown_model_is_one_line(in_process: InProcessCli, gateway: str) -> None:
    ended = in_process("compare", "x", "y", "--url", gateway, "--model", "other")
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: model: no live worker serves 'other'; known: scripted\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either prompts or --prompts FILE"),
        (("x", "--prompts", "p.txt"), "give either prompts or --prompts FILE"),
        (("",), "prompt 1: prompt: string should have at least 1 character"),
        (("x", "--max-tokens", "0"), "--max-tokens: input should be greater than or equal to 1"),
        (("--prompts", "none.txt"), "cannot read none.txt: No such file or directory"),
        (("--prompts", "empty.txt"), "empty.txt has no prompts"),
        (("--prompts", "bad.jsonl"), "bad.jsonl, line 2: not valid JSON: Expecting value (column 1)"),
        (("x", "-o", "."), "-o: . is a folder"),
        (("x", "--html", "no/where.html"), "--html: the folder no does not exist"),
        (("x", "--url", "localhost:1"), "--url 'localhost:1': must look like http://127.0.0.1:7860"),
    ],
)
def test_bad_input_is_one_line(in_process: InProcessCli, arguments: tuple[str, ...], message: str) -> None:
    (in_process.folder / "p.txt").write_text("x\n")
    (in_process.folder / "empty.txt").touch()
    (in_process.folder / "bad.jsonl").write_text('{"prompt": "x"}\nx\n')
    ended = in_process("compare", *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"error: {message}\n")


def test_no_gateway_is_exit_code_4(in_process: InProcessCli) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = in_process("compare", "x", "--url", url)
    assert (ended.returncode, ended.stderr) == (4, f"error: no gateway at {url}: connection refused\n")


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_without_what_draws_nothing_is_begun(cli: Cli, library: str) -> None:
    missing = cli.folder / "missing" / library
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text(f'raise ModuleNotFoundError("gone", name="{library}")')
    cli.env["PYTHONPATH"] = f"{missing.parent}:{cli.env['PYTHONPATH']}"
    ended = cli("compare", "x")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error: charts need {library}: pip install 'medusaq[charts]'\n"
