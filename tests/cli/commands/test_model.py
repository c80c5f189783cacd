"""`medusaq models`, as a user runs it: names, what is refused, and files that change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.filesize import decimal

from cli.stack.model_registration import find_template
from engine import EngineConfig, ModelLoadError
from engine.llama.model import default_model_path
from engine.speculative.setup import shipped_heads
from engine.tools.memory_estimate import needed
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.compiling.helpers.small_hub import Repository, SmallHub
from tests.engine.helpers.tiny import write_tiny_gguf

MODEL = Path(default_model_path())


@pytest.fixture(autouse=True)
def own_register(cli: Cli, tmp_path: Path) -> None:
    cli.env |= {"XDG_DATA_HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub")}


@pytest.fixture
def broken() -> Repository:
    return Repository({"a.gguf": MODEL.read_bytes()}, cut={"a.gguf"})


@pytest.fixture
def hub(cli: Cli, broken: Repository) -> Iterator[SmallHub]:
    shipped = shipped_heads(str(MODEL))
    assert shipped is not None
    model, parts = MODEL.read_bytes(), [f"big-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    types = ("m_Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "old/m-q2_k.gguf")
    small = SmallHub(
        {
            "org/one": Repository({"a.gguf": model, "README.md": b"#"}),
            "org/types": Repository(dict.fromkeys(types, model)),
            "org/several": Repository({"a.gguf": model, "b.gguf": b"GGUF"} | dict.fromkeys(parts, b"GGUF")),
            "org/checkpoint": Repository({"config.json": b"{}", "model.safetensors": b""}),
            "org/broken": broken,
            "org/heads": Repository({"medusa_lm_head.safetensors": shipped.read_bytes()}),
        }
    )
    cli.env["HF_ENDPOINT"] = small.url
    yield small
    small.stop()


def names(run: InProcessCli) -> list[str]:
    return [model["name"] for model in json.loads(run("models", "list", "--json").stdout)]


def test_a_model_from_its_name_to_its_removal(in_process: InProcessCli, tmp_path: Path) -> None:
    assert (
        in_process("models", "list").stdout
        == "no models are registered: add one with `medusaq models add`; `models recommend` lists some\n"
    )
    copy = tmp_path / "copy.gguf"
    shutil.copy(MODEL, copy)
    heads = shipped_heads(str(MODEL))
    assert (
        in_process("models", "add", "small", "copy.gguf", "--heads", str(heads)).stdout
        == f"small is {copy}\n"
    )
    [model] = json.loads(in_process("models", "list", "--json").stdout)
    assert (model["model"]["path"], model["model"]["source"]) == (str(copy), "copy.gguf")
    assert model["model"]["bytes"] == copy.stat().st_size
    assert model["heads"]["path"] == str(heads)
    heads_too = needed(EngineConfig(model=str(copy), heads=str(heads), threads=1))
    assert (model["need_bytes"], model["state"], model["waiting"]) == (heads_too.total, "-", 0)
    assert decimal(heads_too.total) in in_process("models", "list").stdout.splitlines()[1]

    good = in_process("models", "verify")
    assert (good.returncode, len(good.stdout.splitlines())) == (0, 2)
    with copy.open("r+b") as file:
        file.seek(10_000_000)
        file.write(b"other")
    changed = in_process("models", "verify", "small")
    assert changed.returncode == 1
    assert changed.stdout.splitlines()[0] == f"changed  small model {copy}"
    copy.unlink()
    missing = in_process("models", "verify", "--json")
    assert missing.returncode == 1
    assert [row["state"] for row in json.loads(missing.stdout)] == ["missing", "ok"]
    [model] = json.loads(in_process("models", "list", "--json").stdout)
    assert model["need_bytes"] is None, "there is nothing to read it from"

    removed = in_process("models", "remove", "small")
    assert removed.stdout == f"removed small; its files are kept: {copy}, {heads}\n"
    assert names(in_process) == []


def test_what_is_refused(in_process: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "two" / name).symlink_to(MODEL)
    cases = {
        ("Big", str(MODEL)): "error: 'Big' cannot be the name of a model: 1 to 63 of a-z, 0-9, '.', '_'",
        ("a", "missing.gguf"): "error: missing.gguf: no such file",
        ("a", "text.gguf"): "error: text.gguf: not a GGUF file",
        ("a", "empty"): "error: empty has no GGUF: make one of a checkpoint with `medusaq compile empty -o",
        ("a", "two"): "error: two has several GGUFs; give the path of one: a.gguf, b.gguf",
        ("a", "org/repo"): "error: org/repo: no such file; a repository on the hub is hf:org/repo",
        ("a", "hf:org"): "error: hf:org: not hf:ORGANISATION/REPOSITORY, with or without :TYPE, such as",
        ("a", str(MODEL), "--heads", "org/repo"): "error: org/repo: no such file or folder; a repository on",
        ("a", str(MODEL), "--heads", "none"): "error: none: no such file or folder",
        ("a", str(MODEL), "--heads", "text.gguf"): "error: text.gguf",
    }
    for arguments, message in cases.items():
        ended = in_process("models", "add", *arguments)
        assert ended.returncode in (1, 2), arguments
        assert ended.stderr.startswith(message), ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    for command in ("remove", "verify"):
        ended = in_process("models", command, "b")
        assert (
            ended.stderr
            == "error: no model is called 'b'; none has a name yet: medusaq models add NAME PATH\n"
        )
    assert names(in_process) == []


def test_heads_are_checked_without_torch(cli: Cli) -> None:
    add = ["models", "add", "small", str(MODEL), "--heads", str(shipped_heads(str(MODEL)))]
    code = "import sys; sys.modules['torch'] = None; from cli.main import main; main()"
    command = [sys.executable, "-P", "-c", code, *add]
    ended = subprocess.run(command, cwd=cli.folder, env=cli.env, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert names(cli) == ["small"]


def test_heads_of_another_width(in_process: InProcessCli, tmp_path: Path) -> None:
    tiny_gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    heads = shipped_heads(str(MODEL))
    ended = in_process("models", "add", "tiny", tiny_gguf, "--heads", str(heads))
    assert ended.returncode == 1
    assert str(heads) in ended.stderr
    assert "576" in ended.stderr, ended.stderr
    assert names(in_process) == []


def test_a_taken_name(in_process: InProcessCli) -> None:
    assert in_process("models", "add", "a", str(MODEL)).returncode == 0
    again = in_process("models", "add", "a", str(MODEL))
    assert again.stderr == f"error: 'a' is already registered as {MODEL}: remove it first, or use --replace\n"
    assert in_process("models", "add", "a", str(MODEL), "--replace").returncode == 0


def test_a_damaged_register(in_process: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "medusaq").mkdir()
    (tmp_path / "medusaq" / "models.json").write_text("{")
    for arguments in (["list"], ["verify"], ["remove", "a"], ["add", "a", str(MODEL)]):
        ended = in_process("models", *arguments)
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"error: {tmp_path}/medusaq/models.json: is no register of models")


def test_a_chat_template_is_a_known_name_or_a_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vicuna").mkdir()  # as `medusaq compile -o vicuna` leaves one
    assert find_template("vicuna") == "vicuna"
    Path("own.jinja").write_text("{{ messages[0].content }}")
    assert find_template("own.jinja") == str(tmp_path / "own.jinja")
    Path("empty.jinja").write_text("")
    with pytest.raises(ModelLoadError, match=r"empty\.jinja: holds no chat template, it is empty"):
        find_template("empty.jinja")
    refused = cli("models", "add", "a", str(MODEL), "--chat-template", "none.jinja")
    assert refused.returncode == 1
    assert "none.jinja: neither a file with a chat template nor the name of one" in refused.stderr
    assert names(cli) == []


def test_a_model_of_a_hub(cli: Cli, hub: SmallHub) -> None:
    added = cli("models", "add", "one", "hf:org/one")
    assert (added.returncode, "100%" in added.stderr) == (0, True), "how far it is"
    [model] = json.loads(cli("models", "list", "--json").stdout)
    assert model["model"]["source"] == "hf:org/one"
    assert Path(model["model"]["path"]).read_bytes() == MODEL.read_bytes()
    assert hub.asked == ["a.gguf"]
    several = cli("models", "add", "b", "hf:org/several")
    assert several.stderr.startswith(
        "error: hf:org/several: choose one with hf:org/several:NAME.gguf: a.gguf,"
    )
    assert cli("models", "add", "b", "hf:org/several:a.gguf").returncode == 0
    assert hub.asked == ["a.gguf", "a.gguf"], "nothing that was not asked for"
    cli.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    assert cli("models", "add", "b", "hf:org/several:a.gguf", "--replace").returncode == 0, "it was kept"
    other = cli("models", "add", "b", "hf:org/several:b.gguf", "--replace")
    assert other.stderr.startswith(
        "error: hf:org/several:b.gguf: the hub cannot be reached, and there is no ca"
    )
    assert names(cli) == ["b", "one"]


def test_heads_of_a_hub(cli: Cli, hub: SmallHub) -> None:
    added = cli("models", "add", "m", str(MODEL), "--heads", "hf:org/heads")
    assert added.returncode == 0, added.stderr
    [model] = json.loads(cli("models", "list", "--json").stdout)
    assert model["heads"]["source"] == "hf:org/heads"
    assert hub.asked == ["medusa_lm_head.safetensors"]
    refused = cli("models", "add", "n", str(MODEL), "--heads", "hf:org")
    assert refused.stderr == "error: hf:org: not hf:ORGANISATION/REPOSITORY\n"


def test_what_a_hub_does_not_have(cli: Cli, hub: SmallHub) -> None:
    cases = {
        "hf:org/checkpoint": "hf:org/checkpoint has no GGUF: make one of a checkpoint with `medusaq com",
        "hf:org/several:Q8_0": "hf:org/several:Q8_0: big-Q8_0-00001-of-00002.gguf is a part of a split GGUF",
        "hf:org/types:Q5_K_M": "hf:org/types:Q5_K_M: choose one with hf:org/types:NAME.gguf: m-Q4_K_S.gguf, ",
        "hf:org/none": "org/none: no such repository on the hub, or a private one",
    }
    for source, said in cases.items():
        refused = cli("models", "add", "c", source)
        assert (refused.returncode != 0, len(refused.stderr.splitlines())) == (True, 1), refused.stderr
        assert refused.stderr.startswith(f"error: {said}"), refused.stderr
    assert hub.asked == []


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("hf:org/types", "m_Q4_K_M.gguf"),
        ("hf:org/types:Q4_K_M", "m_Q4_K_M.gguf"),
        ("hf:org/types:q8_0", "m-Q8_0.gguf"),
        ("hf:org/types:Q2_K", "old/m-q2_k.gguf"),
    ],
)
def test_a_number_format_chooses_the_file(cli: Cli, hub: SmallHub, source: str, file: str) -> None:
    added = cli("models", "add", "m", source)
    assert added.returncode == 0, added.stderr
    assert hub.asked == [file]
    assert added.stdout.endswith(f"/{file}\n")


def test_a_download_that_broke_off_goes_on(cli: Cli, hub: SmallHub, broken: Repository) -> None:
    cut = cli("models", "add", "m", "hf:org/broken")
    assert cut.returncode == 1
    assert "error: org/broken: the download broke off, repeat to go on" in cut.stderr
    broken.cut.clear()
    hub.resumed.clear()
    assert cli("models", "add", "m", "hf:org/broken").returncode == 0
    [begin] = hub.resumed
    assert begin > MODEL.stat().st_size * 0.4
    [model] = json.loads(cli("models", "list", "--json").stdout)
    assert Path(model["model"]["path"]).read_bytes() == MODEL.read_bytes()


def test_a_worker_of_an_unknown_name(cli: Cli) -> None:
    cli("models", "add", "small", str(MODEL))
    ended = cli("worker", "--model", "smal")
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].endswith(
        "'smal' is neither a file nor the name of a model; known: small"
    )


@pytest.mark.slow
def test_models_are_recommended_by_what_they_need_here(in_process: InProcessCli) -> None:
    models = json.loads(in_process("models", "recommend", "--json").stdout)
    assert len(models) >= 8
    assert {model["tools"] for model in models} == {True, False}
    assert [model["name"] for model in models if model["heads"]] == ["vicuna-7b"]
    assert all(model["need_bytes"] > model["file_bytes"] > 0 for model in models)
    by_size = sorted(models, key=lambda model: model["file_bytes"])
    rates = [model["tokens_per_s"] for model in by_size]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1] > 0
    shown = in_process("models", "recommend").stdout.splitlines()
    assert [line.split()[0] for line in shown[1 : len(models) + 1]] == [model["name"] for model in models]
    assert shown[-1].endswith("To add one: medusaq models add NAME SOURCE")
