"""`medusaq compare` against a real gateway and worker with scripted heads, and its charts and page."""

from __future__ import annotations

import base64
import io
import re
import signal
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import httpx
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from cli.reports import charts
from cli.reports.comparison import Answer, Compared, together
from cli.reports.comparison_report import charts as charts_of
from cli.reports.comparison_report import report, rows
from tasks.records.job import Decoding
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli, write_jsonl
from tests.support.servers import free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.slow

HEADS = {"SCRIPTED_DRAFT_SOURCES": "medusa,lookup"}
SCRIPT = "tokens=12 steps=4 drafted=medusa:10:6 delay=0.3 faster=2"
HEADER = "prompt decoding tokens seconds tokens/s speed-up tokens/step acceptance text"


@pytest.fixture(scope="module")
def worker_env() -> dict[str, str]:
    return HEADS


class Page(HTMLParser):
    """What a browser would make of it: the text of each element, and where it looks for more."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.sources: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


def size_of(png: bytes) -> tuple[int, int]:
    image = Image.open(io.BytesIO(png))
    image.load()
    assert image.format == "PNG"
    return image.size


def answer(
    tokens: int = 10, seconds: float = 1.0, drafts: tuple[int, int] = (0, 0), text: str = "x"
) -> Answer:
    return Answer(text, tokens, seconds, tokens - drafts[1], *drafts)


def compared(title: str = "p", faster: float = 2.0, text: str = "x") -> Compared:
    return Compared(
        title,
        {
            Decoding.NORMAL: answer(),
            Decoding.MEDUSA: answer(seconds=1 / faster, drafts=(8, 4), text=text),
            Decoding.AUTO: answer(seconds=0.8),
        },
    )


def answers_of(gateway: str, prompt: str, max_tokens: int) -> dict[str, Answer]:
    """By decoding. The one token that comes first, only to have the prompt computed, is left out."""
    jobs = httpx.get(f"{gateway}/v1/jobs").raise_for_status().json()["data"]
    asked = [job for job in jobs if job["request"]["prompt"] == prompt]
    compared = [job for job in asked if job["request"]["max_tokens"] == max_tokens]
    assert (len(asked), len(compared)) == (4, 3)
    seconds = {
        job["request"]["decoding"]: job["result"]["timing"]["total_s"] - job["result"]["timing"]["queue_s"]
        for job in compared
    }
    return {decoding: answer(tokens=12, seconds=took) for decoding, took in seconds.items()}


@pytest.mark.stack
def test_table_charts_and_page(in_process: InProcessCli, gateway: str) -> None:
    prompts = [f"the first one {SCRIPT}", f"<b>second</b> &amp; {SCRIPT} differs=1"]
    ended = in_process("compare", *prompts, "--url", gateway, "--max-tokens", "40")
    assert (ended.returncode, ended.stderr) == (0, "")
    head, *lines, last = ended.stdout.splitlines()
    assert head.split() == HEADER.split()
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert len(cells) == 9
    normal, medusa, auto = cells[:3]
    assert normal[0].startswith("the first one tokens=12")
    assert normal[1:3] + normal[5:] == ["normal", "12", "-", "1.00", "-", "-"]
    assert medusa[:2] + medusa[5:] == ["medusa", "12", "3.00", "60%", "same"]
    assert auto[:2] + auto[5:] == ["auto", "12", "3.00", "60%", "same"]
    answers = answers_of(gateway, prompts[0], max_tokens=40)
    assert medusa[4] == f"{answers['medusa'].tokens_per_s / answers['normal'].tokens_per_s:.2f}x"
    assert [row[-1] for row in cells[3:]] == ["-", "differs", "differs", "-", "1 of 2 same", "1 of 2 same"]
    assert cells[6][0] == "all prompts"
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
    assert shown.texts["td"].count("differs") == 2


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
    wait_until(lambda: ready(url) and bool(httpx.get(f"{url}/v1/jobs").json()["data"]), 30)
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
        "error: decoding: 'medusa' needs Medusa heads, and no live worker has any for its model"
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


def test_rows_of_one_prompt_and_of_several() -> None:
    one = [("p", "normal", "10", "1.00", "10.0", "-", "1.00", "-", "-")]
    one.append(("", "medusa", "10", "0.50", "20.0", "2.00x", "1.67", "50%", "same"))
    one.append(("", "auto", "10", "0.80", "12.5", "1.25x", "1.00", "-", "same"))
    assert rows([compared()]) == one
    several = rows([compared(), Compared("bad", {}, "why"), compared(faster=4.0, text="y")])
    assert several[:3] == one
    assert several[4][-1] == "differs"
    assert several[6:] == [
        ("all prompts", "normal", "20", "2.00", "10.0", "-", "1.00", "-", "-"),
        ("", "medusa", "20", "0.75", "26.7", "2.67x", "1.67", "50%", "1 of 2 same"),
        ("", "auto", "20", "1.60", "12.5", "1.25x", "1.00", "-", "2 of 2 same"),
    ]


def test_an_instant_answer_has_no_speed_up() -> None:
    nothing = Compared("p", dict.fromkeys(Decoding, answer(tokens=0, seconds=0.0)))
    assert nothing.speed_up(Decoding.MEDUSA) is None
    assert rows([nothing])[1] == ("", "medusa", "0", "0.00", "0.0", "-", "-", "-", "same")
    assert size_of(charts.draw("t", charts_of([nothing]))) == (1500, 1125)
    assert together([nothing, nothing]).speed_up(Decoding.AUTO) is None


def test_what_the_charts_show() -> None:
    """As the table has it: bars of all together, a dot for each prompt, gains over acceptance."""
    several = [compared(), Compared("bad", {}, "why"), compared(faster=4.0)]
    drawn = charts.figure("two prompts", charts_of(several))
    assert drawn.get_suptitle() == "two prompts"
    speed, seconds, tokens, gain = drawn.axes
    lengths = {
        axes.get_title(): [bar.get_width() for bar in axes.patches] for axes in (speed, seconds, tokens)
    }
    assert lengths == {
        "Tokens a second": pytest.approx([10.0, 20 / 0.75, 12.5]),
        "Seconds, mean of a prompt": pytest.approx([1.0, 0.375, 0.8]),
        "Tokens, mean of a prompt": pytest.approx([10, 10, 10]),
    }
    assert [label.get_text() for label in speed.get_yticklabels()] == ["normal", "medusa", "auto"]
    assert [[x for x, _ in dots.get_offsets()] for dots in speed.collections] == [
        pytest.approx([10.0, 10.0]),
        pytest.approx([20.0, 40.0]),
        pytest.approx([12.5, 12.5]),
    ]
    medusa, whole = (sorted(map(tuple, dots.get_xydata())) for dots in gain.lines[:2])
    assert medusa == [pytest.approx((50.0, 2.0)), pytest.approx((50.0, 4.0))]
    assert whole == [pytest.approx((50.0, 2 / 0.75))]
    assert gain.get_legend().get_texts()[0].get_text() == "medusa: 2.67x"


@pytest.mark.parametrize("drafts", [(10, 0), (10, 1), (10, 5), (10, 10), (0, 0)])
@pytest.mark.parametrize("count", [1, 40])
def test_the_legend_covers_nothing_and_is_inside_the_picture(count: int, drafts: tuple[int, int]) -> None:
    """By where its parts are drawn, whatever the points."""
    one = answer(drafts=drafts)
    many = [
        Compared("p", {way: replace(one, seconds=1 / (1 + n)) if n else one for way in Decoding})
        for n in range(count)
    ]
    drawn = charts.figure("t", charts_of(many))
    FigureCanvasAgg(drawn).draw()
    gain = drawn.axes[-1]
    legend = gain.get_legend().get_window_extent()
    assert not legend.overlaps(gain.get_window_extent()), "no point can be behind it"
    assert all(not legend.overlaps(axes.get_tightbbox()) for axes in drawn.axes[:-1])
    assert drawn.bbox.x0 <= legend.x0
    assert legend.x1 <= drawn.bbox.x1
    assert legend.y1 <= drawn.bbox.y1
    assert gain.get_window_extent().width > drawn.bbox.width / 5, "the legend leaves room for the points"


@pytest.mark.parametrize("count", [1, 2, 100])
def test_charts_of_any_number(count: int) -> None:
    many = [compared(f"p{n}", faster=0.5 + n / 50) for n in range(count)]
    bad = Compared("bad", {}, "why")
    assert size_of(charts.draw("with $x$ and _ in it", charts_of([*many, bad]))) == (1500, 1125)


def test_the_page_escapes_everything() -> None:
    evil = "</pre><script>alert(1)</script>"
    shown = Page(report([compared(evil, text=evil), Compared(evil, {}, evil)], evil).page(b"png"))
    assert "script" not in shown.tags
    assert shown.texts["h1"] == shown.texts["title"] == [evil]
    assert shown.texts["pre"] == ["x", evil, "x"]
    assert shown.texts["h2"] == [f"1. {evil}", f"2. {evil}"]
