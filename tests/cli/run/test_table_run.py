"""`medusaq run` with tables, against a real gateway, io worker and model worker; the engine is scripted."""

from __future__ import annotations

import csv
import functools
import io
import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cli.run import run
from cli.run.shards import PartFiles
from tables.sources.open_table import open_table
from tables.targets.create_table import create_table
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Begun, Cli, read_jsonl
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
COUNT = 24


def rows(path: Path) -> list[dict[str, Any]]:
    table = open_table(path)
    return [dict(zip(table.columns, row.values, strict=True)) for row in table.rows()]


def reviews(folder: Path, name: str = "r.csv") -> Path:
    """Row 3 has no text, row 4 fails."""
    texts = ["fine, thanks", 'says "no"', "", "broken fail=boom", "+1+1"]
    with create_table(folder / name, ["n", "text"], types={"n": "BIGINT"}) as writer:
        for number, text in enumerate(texts, 1):
            writer.write([number, text])
    return folder / name


@pytest.mark.parametrize("source", ["r.csv", "r.parquet"])
@pytest.mark.parametrize("results", ["o.csv", "o.tsv", "o.parquet", "o.xlsx", "o.jsonl", "o.csv.gz"])
def test_a_table_in_a_table_out(in_process: InProcessCli, gateway: str, source: str, results: str) -> None:
    reviews(in_process.folder, source)
    command = ("run", source, "-o", results, "--column", "text", "--url", gateway, "--usage")
    ended = in_process(*command)
    assert ended.returncode == 1, ended.stderr
    number = (lambda n: n) if source == "r.parquet" and results != "o.tsv" else str
    missing: Any = "" if ".csv" in results or "tsv" in results else None
    if missing == "":
        number = str
    found = rows(in_process.folder / results)
    names = ["n", "text", "answer", "finish_reason", "error", "prompt_tokens", "completion_tokens"]
    assert [*found[0]] == names
    assert [row["n"] for row in found] == [number(n) for n in range(1, 6)]
    assert [row["answer"] for row in found] == ["fine, thanks", 'says "no"', missing, missing, "+1+1"]
    assert [row["error"] for row in found][:3] == [missing, missing, "invalid_value: prompt: empty"]
    assert found[3]["error"].startswith("boom")
    assert [row["text"] for row in found][3:] == ["broken fail=boom", "+1+1"]
    assert [str(row["completion_tokens"]) for row in found[:2]] == ["1", "1"]
    assert "1 of 5 requests are invalid" in ended.stderr
    assert "text is empty in 1 of 5 rows\n" in ended.stderr
    assert "failures          2 (" in ended.stdout
    assert not (in_process.folder / f"{results}.run").exists()


@pytest.mark.parametrize("results", ["o.parquet", "o.csv", "o.xlsx", "o.jsonl"])
def test_chat_logs_in_parquet(in_process: InProcessCli, gateway: str, results: str) -> None:
    messages = [{"role": "user", "content": "hi, you"}, {"role": "assistant", "content": "{'a': 1}"}]
    kind = "STRUCT(role VARCHAR, content VARCHAR)[]"
    with duckdb.connect() as database:
        logs = f"SELECT $1::{kind} AS messages, {{'lang': 'de'}} AS meta"
        database.execute(f"CREATE TABLE logs AS {logs}", [messages])
        database.execute(f"COPY logs TO '{in_process.folder}/r.parquet'")
    template = "{{ meta.lang }}:{% for m in messages %} {{ m.role }} {{ m.content }};{% endfor %}"
    command = ("run", "r.parquet", "-o", results, "--template", template, "--url", gateway)
    prompt = "de: user hi, you; assistant {'a': 1};"
    assert in_process(*command, "--dry-run").stdout.startswith(f"row 1 (row-1):\n{prompt}\n")
    ended = in_process(*command)
    assert ended.returncode == 0, ended.stderr
    [row] = rows(in_process.folder / results)
    assert row["answer"] == prompt, "the engine answers with the prompt"
    nested = results in ("o.parquet", "o.jsonl")
    assert (row["messages"] if nested else json.loads(row["messages"])) == messages
    if results == "o.parquet":
        before, after = (open_table(in_process.folder / name).types() for name in ("r.parquet", results))
        assert after["messages"] == before["messages"]


@pytest.mark.parametrize("more", [(), ("--fresh",), ("--dry-run",), ("--limit", "1")])
def test_what_is_read_is_never_written(cli: Cli, in_process: InProcessCli, more: tuple[str, ...]) -> None:
    """Refused by the inode, before a stack starts: the results would replace the only copy of the input."""
    folder = in_process.folder
    content = (reviews(folder)).read_bytes()
    (folder / "hard.csv").hardlink_to(folder / "r.csv")
    (folder / "soft.csv").symlink_to("r.csv")
    (folder / "t.jsonl").write_text("{{ text }}", encoding="utf-8")
    (folder / "r.csv.run").mkdir()
    (folder / "r.csv.run" / "in.csv").write_bytes(content)
    there = sorted(folder.rglob("*"))
    text = ("--column", "text")
    for source, results, options, said in (
        ("r.csv", "r.csv", text, "-o: r.csv is in use: name another file to write"),
        ("r.csv", "hard.csv", text, "-o: hard.csv is in use as r.csv: name another file to write"),
        ("r.csv", "soft.csv", text, "-o: soft.csv is in use as r.csv: name another file to write"),
        ("soft.csv", "r.csv", text, "-o: r.csv is in use as soft.csv: name another file to write"),
        ("*.csv", "r.csv", (), "-o: r.csv is in use as hard.csv: name another file to write"),
        (
            "r.csv",
            "t.jsonl",
            ("--template-file", "t.jsonl"),
            "-o: t.jsonl is in use: name another file to write",
        ),
        (
            "r.csv.run/in.csv",
            "r.csv",
            text,
            "r.csv.run/in.csv is in r.csv.run, which a run clears: move it, or change -o",
        ),
    ):
        ended = in_process("run", source, "-o", results, *options, *more)
        assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"error: {said}\n")
    with (folder / "r.csv").open("rb") as file:
        command = [sys.executable, *cli.command, "run", "-", "-o", "r.csv", "--format", "csv", *text, *more]
        ended = subprocess.run(command, stdin=file, capture_output=True, cwd=folder, env=cli.env, text=True)
    said = "error: -o: r.csv is in use as standard input: name another file to write\n"
    assert (ended.returncode, ended.stderr) == (2, said)
    assert sorted(folder.rglob("*")) == there
    assert {path.read_bytes() for path in folder.rglob("*.csv") if path.is_file()} == {content}


def test_what_was_sniffed_is_said(in_process: InProcessCli, gateway: str) -> None:
    (in_process.folder / "r.csv").write_bytes(b"id;text\n1;gr\xfcn, so\n")
    ended = in_process("run", "r.csv", "-o", "o.csv", "--column", "text", "--url", gateway)
    assert ended.stderr.startswith("r.csv: CSV, separated by semicolons, cp1252 (guessed)\n")
    assert (in_process.folder / "o.csv").read_text(encoding="utf-8") == (
        'id,text,answer,finish_reason,error\n1,"grün, so","grün, so",stop,\n'
    )


def test_a_schema_makes_columns(in_process: InProcessCli, gateway: str) -> None:
    answers = [
        '{"mood":"good","tags":["a"],"stars":3}',
        '{"mood":"bad"}',
        "oops",
        '{"stars":"x"}',
        "x fail=boom",
    ]
    with create_table(in_process.folder / "r.csv", ["text"]) as writer:
        for text in answers:
            writer.write([text])
    properties = {"mood": {"type": "string"}, "stars": {"type": "integer"}, "tags": {"type": "array"}}
    schema = {"type": "object", "properties": properties}
    (in_process.folder / "s.json").write_text(json.dumps(schema), encoding="utf-8")
    command = ("run", "r.csv", "--template", "{{ text }}", "--schema", "s.json", "--url", gateway)
    ended = in_process(*command, "-o", "o.csv", "--keep")
    assert ended.returncode == 1
    with (in_process.folder / "o.csv").open(encoding="utf-8", newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["text", "mood", "stars", "tags", "finish_reason", "error"]
    assert found[0][1:] == ["good", "3", '["a"]', "stop", ""]
    assert found[1][1:] == ["bad", "", "", "stop", ""]
    assert found[2][1:] == [
        *[""] * 3,
        "stop",
        "the answer is not JSON: Expecting value: line 1 column 1 (char 0)",
    ]
    assert found[3][1:] == [*[""] * 3, "stop", "stars: x does not fit its column"]
    assert found[4][5].startswith("boom")
    assert "failures          3 (invalid_answer 2, boom 1)" in ended.stdout
    (sent, *_) = read_jsonl(in_process.folder / "o.csv.run" / "parts" / "000001.jsonl")
    assert sent["body"]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    assert in_process(*command, "-o", "o.jsonl").returncode == 1
    assert [row["tags"] for row in rows(in_process.folder / "o.jsonl")][:2] == [["a"], None], (
        "not JSON in JSON"
    )


def test_the_summary_says_how_many_rows_are_as_expected(in_process: InProcessCli, gateway: str) -> None:
    (in_process.folder / "r.csv").write_text(
        "text,expected_answer\nyes,yes\nno,yes\nmaybe,\nx fail=boom,no\n", encoding="utf-8"
    )
    ended = in_process("run", "r.csv", "-o", "o.csv", "--column", "text", "--url", gateway)
    assert "as expected       1 of 3 rows\n" in ended.stdout
    reviews(in_process.folder)
    ended = in_process("run", "r.csv", "-o", "p.csv", "--column", "text", "--url", gateway, "--fresh")
    assert "as expected" not in ended.stdout


def test_the_answers_of_a_run_can_be_the_next_ones_input(in_process: InProcessCli, gateway: str) -> None:
    reviews(in_process.folder)
    url = ("--url", gateway)
    in_process("run", "r.csv", "-o", "a.csv", "--column", "text", *url)
    ended = in_process("run", "a.csv", "-o", "b.csv", "--template", "{{ n }}. {{ answer }}", *url)
    assert ended.returncode == 0, ended.stderr
    last = rows(in_process.folder / "b.csv")[-1]
    assert list(last)[2:] == ["answer", "finish_reason", "error", "answer_2", "finish_reason_2", "error_2"]
    assert (last["answer"], last["answer_2"]) == ("+1+1", "5. +1+1")


def test_ids_templates_in_files_and_the_system_message(in_process: InProcessCli, gateway: str) -> None:
    reviews(in_process.folder)
    (in_process.folder / "t.txt").write_text("No. {{ n }}", encoding="utf-8")
    options = ("--template-file", "t.txt", "--system", "About {{ n }}", "--id", "n", "--keep")
    ended = in_process("run", "r.csv", "-o", "o.csv", *options, "--url", gateway)
    assert ended.returncode == 0, ended.stderr
    sent = read_jsonl(in_process.folder / "o.csv.run" / "parts" / "000001.jsonl")
    assert [line["custom_id"] for line in sent] == ["1", "2", "3", "4", "5"]
    assert [message["content"] for message in sent[1]["body"]["messages"]] == ["About 2", "No. 2"]


def test_no_answer_becomes_a_formula(in_process: InProcessCli, gateway: str) -> None:
    reviews(in_process.folder)
    command = ("run", "r.csv", "--column", "text", "--url", gateway)
    in_process(*command, "-o", "o.xlsx")
    with zipfile.ZipFile(in_process.folder / "o.xlsx") as book:
        assert b"<f>" not in book.read("xl/worksheets/sheet1.xml")
    in_process(*command, "-o", "o.csv", "--safe-csv")
    last = (in_process.folder / "o.csv").read_text(encoding="utf-8").splitlines()[-1]
    assert last == "5,'+1+1,'+1+1,stop,"
    ended = in_process(*command, "-o", "p.xlsx", "--safe-csv")
    assert (ended.returncode, ended.stderr) == (2, "error: --safe-csv is for results in CSV or TSV\n")


def test_the_first_rows_are_shown_and_the_rest_is_told(
    in_process: InProcessCli, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews(in_process.folder)
    command = ("run", "r.csv", "-o", "o.csv", "--column", "text", "--url", gateway)
    ended = in_process(*command, "--limit", "2")
    assert ended.returncode == 0, ended.stderr
    assert len(rows(in_process.folder / "o.csv")) == 2
    assert "│ 1 │ fine, thanks │ fine, thanks │ stop" in ended.stdout
    told = f"for all rows: medusaq run r.csv -o o.csv --column text --url {gateway} --fresh\n"
    assert told in ended.stdout
    monkeypatch.setattr("cli.commands.run._confirmed", lambda: True)
    ended = in_process(*command, "--limit=1", "--fresh", "--show", "2")
    assert ended.returncode == 1
    assert len(rows(in_process.folder / "o.csv")) == 5
    assert 'row-1: fine, thanks\nrow-2: says "no"\n' in ended.stdout
    assert "for all rows" not in ended.stdout


BAD = [
    (
        ("-o", "o.pdf"),
        "o.pdf: cannot write this kind of file; its name must end in .csv, .tsv, .parquet, .xlsx",
    ),
    (
        ("-o", "o.csv", "--template", "{{ texte }}"),
        "--template: there is no column 'texte'; did you mean 'text'?",
    ),
    (("-o", "o.csv", "--column", "text", "--template", "x"), "give either a template or --column"),
    (("-o", "o.csv"), "the columns are 'n', 'text': say with --template or --column what to send"),
    (("-o", "o.csv", "--column", "text", "--schema", "none.json"), "cannot read none.json: No such file"),
    (("-o", "o.csv", "--column", "text", "--json", "a:b"), "a: there is no type 'b'"),
    (
        ("-o", "o.csv", "--column", "text", "--json", "a:int", "--schema", "s"),
        "give either --schema or --json",
    ),
    (("-o", "o.csv", "--template", "x", "--template-file", "t"), "give either --template or --template-file"),
    (("-o", "o.csv", "--template-file", "none.txt"), "cannot read none.txt: No such file or directory"),
    (("-o", "o.csv", "--template-file", "latin.txt"), "latin.txt: not valid UTF-8"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_is_wrong_is_one_line_and_nothing_is_sent(
    in_process: InProcessCli, options: tuple[str, ...], message: str
) -> None:
    reviews(in_process.folder)
    (in_process.folder / "latin.txt").write_bytes(b"\xfc")
    ended = in_process("run", "r.csv", *options, "--url", "http://127.0.0.1:9")
    assert (ended.returncode, ended.stdout) == (2, "")
    *said, last = ended.stderr.splitlines()
    assert last.startswith(f"error: {message}")
    assert said in ([], ["r.csv: CSV, separated by commas"])
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["latin.txt", "r.csv"]


def test_requests_have_no_columns(in_process: InProcessCli) -> None:
    (in_process.folder / "p.jsonl").write_text('{"prompt": "x"}\n', encoding="utf-8")
    url = ("--url", "http://127.0.0.1:9")
    ended = in_process("run", "p.jsonl", "-o", "o.csv", *url)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "error: p.jsonl is read as requests, whose results are JSON lines: name a .jsonl"
    )
    ended = in_process("run", "p.jsonl", "-o", "o.jsonl", "--usage", *url)
    assert ended.stderr.startswith("error: --usage is for tables")
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["p.jsonl"]


def test_a_table_that_breaks_off_is_not_sent(in_process: InProcessCli) -> None:
    (in_process.folder / "r.csv").write_text("a,b\n1,2\n3\n", encoding="utf-8")
    ended = in_process("run", "r.csv", "-o", "o.csv", "--column", "a", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 2
    assert ended.stderr.endswith("error: r.csv: row 2 (line 3) has 1 value, the table has 2 columns\n")
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["r.csv"]


def slow(folder: Path, delay: float, last: float) -> None:
    with create_table(
        folder / "r.parquet", ["n", "delay"], types={"n": "BIGINT", "delay": "DOUBLE"}
    ) as writer:
        for number in range(COUNT):
            writer.write([number, last if number == COUNT - 1 else delay])


def test_a_killed_run_of_a_table_goes_on(cli: Cli, gateway: str) -> None:
    slow(cli.folder, 0.05, 2.5)
    template = "answer {{ n }} delay={{ delay }} tokens=2"
    command = ("run", "r.parquet", "-o", "o.parquet", "--template", template, "--url", gateway)
    running = cli.start(*command)
    begun = Begun(cli.folder / "o.parquet", gateway)
    wait_until(lambda: begun.done() >= 6, alive=lambda: running.process.poll() is None, report=running.text)
    running.send(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert not (cli.folder / "o.parquet").exists()

    changed = cli(*command[:-3], "other {{ n }}", *command[-2:])
    assert changed.returncode == 2
    assert "was begun with other options (template was" in changed.stderr

    ended = cli(*command)
    assert ended.returncode == 0, ended.stderr
    assert f"of {COUNT} requests are done already" in ended.stderr
    found = rows(cli.folder / "o.parquet")
    assert [(row["n"], row["answer"]) for row in found] == [(n, f"answer {n}") for n in range(COUNT)]
    assert dict(open_table(cli.folder / "o.parquet").types())["n"] == "BIGINT"
    assert not begun.record.parent.exists()


def test_an_input_that_changed_meanwhile_is_not_joined(cli: Cli, gateway: str) -> None:
    slow(cli.folder, 0.05, 2.5)
    command = ("run", "r.parquet", "-o", "o.csv", "--template", "{{ n }} delay={{ delay }}", "--url", gateway)
    running = cli.start(*command)
    begun = Begun(cli.folder / "o.csv", gateway)
    wait_until(lambda: begun.done() >= 3, alive=lambda: running.process.poll() is None, report=running.text)
    whole = (cli.folder / "r.parquet").read_bytes()
    slow(cli.folder, 0.1, 2.5)
    assert running.wait() == 1
    assert "r.parquet has changed since it was sent: put it back as it was" in running.text()
    assert not (cli.folder / "o.csv").exists()
    (cli.folder / "r.parquet").write_bytes(whole)
    assert cli(*command).returncode == 0
    assert [row["answer"] for row in rows(cli.folder / "o.csv")] == [str(n) for n in range(COUNT)]


def test_a_table_of_many_parts_and_standard_input(
    cli: Cli, in_process: InProcessCli, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PartFiles", functools.partial(PartFiles, most_lines=4))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["text"], *[[f"t{n}"] for n in range(30)]])
    (in_process.folder / "r.csv").write_text(text.getvalue(), encoding="utf-8")
    assert in_process("run", "r.csv", "-o", "o.csv", "--url", gateway).returncode == 0
    assert [row["answer"] for row in rows(in_process.folder / "o.csv")] == [f"t{n}" for n in range(30)]
    piped = cli(
        "run", "-", "-o", "p.csv", "--column", "text", "--url", gateway, stdin=text.getvalue().encode()
    )
    assert piped.returncode == 0, piped.stderr
    assert (cli.folder / "p.csv").read_bytes() == (cli.folder / "o.csv").read_bytes()


def test_a_full_disk_is_one_line_and_the_run_goes_on(cli: Cli, gateway: str) -> None:
    with create_table(cli.folder / "r.csv", ["text"]) as writer:
        for _ in range(40):
            writer.write(["word " * 400])
    command = ("run", "r.csv", "-o", "o.csv", "--column", "text", "--url", gateway)
    ended = cli(*command, file_kb=120)
    assert ended.returncode == 1
    assert "error: cannot write o.csv" in ended.stderr
    assert not (cli.folder / "o.csv").exists()
    assert cli(*command).returncode == 0
    assert len(rows(cli.folder / "o.csv")) == 40
