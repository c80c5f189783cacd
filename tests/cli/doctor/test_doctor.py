"""`medusaq doctor`: settings, ports, packages and the machine; each line that is not ok, by causing it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from cli.doctor import engine, machine, redis_server, stack
from cli.doctor.findings import Finding, Grade, fail, guarded
from engine.host.system_memory import Memory
from tasks.base.settings import Settings
from tests.cli.helpers.findings import examined, only
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.support.servers import free_port
from tests.support.workers import ROOT, wait_until

pytestmark = pytest.mark.slow


def test_a_bare_machine_is_well_and_a_person_can_read_it(cli: Cli) -> None:
    cli.env |= {"MEDUSAQ_PORT": str(free_port()), "MEDUSAQ_FLOWER_PORT": str(free_port())}
    del cli.env["TEST_MARK"]
    ended = cli("doctor")
    assert ended.returncode == 0, ended.stdout
    assert not [line for line in ended.stdout.splitlines() if not line.startswith("ok ")], ended.stdout
    assert "`medusaq up` starts its own" in ended.stdout


@pytest.mark.stack
def test_it_writes_nothing_into_the_current_folder(in_process: InProcessCli) -> None:
    folder = in_process.folder
    examined(in_process)
    assert [*folder.rglob("*")] == []
    (folder / ".medusaq" / "files").mkdir(parents=True)
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
    found = examined(in_process)
    assert only(found, "file store", Grade.OK)
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before


def test_a_running_stack_is_found_and_well(cli: Cli, in_process: InProcessCli) -> None:
    running = cli.start("up", "--port", "0", "--flower-port", "0")
    url = running.wait_for("  gateway  ").split()[-1]
    flower = running.wait_for("  Flower   ").split()[-1]

    wait_until(lambda: _ready(url, flower))
    last: dict[str, list[Finding]] = {}

    def all_there() -> bool:
        last.update(examined(in_process))
        by_flower = last["port of flower"][0].what.endswith("served by flower")
        return by_flower and last["io worker"][0].grade is Grade.OK

    wait_until(all_there)
    assert last["port of gateway"][0].what == f"{url.rpartition(':')[2]} is served by gateway"
    assert last["port of flower"][0].what.startswith(flower.rpartition(":")[2])
    assert "1 alive, 16 slots, scripted" in only(last, "model workers", Grade.OK).what
    assert {one.grade for several in last.values() for one in several} <= {Grade.OK, Grade.WARN}
    running.send(signal.SIGKILL)
    running.wait()
    cli.gone()
    assert (cli.folder / ".medusaq" / "stack.json").exists()
    assert "is not running" in only(examined(in_process), "redis", Grade.OK).what


def _ready(url: str, flower: str) -> bool:
    try:
        ready = httpx.get(f"{url}/readyz").json()
        return bool(ready["workers"] and ready["io_worker"] and httpx.get(flower).status_code < 500)
    except httpx.TransportError:
        return False


def test_settings_that_are_refused_and_names_that_mean_nothing(in_process: InProcessCli) -> None:
    (in_process.folder / ".env").write_text("MEDUSAQ_SLOTS=3\nMEDUSAQ_KVCELLS=9\nOTHER=1\n", encoding="utf-8")
    found = examined(
        in_process, MEDUSAQ_SLOTS="many", MEDUSAQ_THREADS="-1", MEDUSAQ_KV_TYPE="f32", MEDUSAQ_THREDS="2"
    )
    assert [one.grade for one in found["settings"]] == [Grade.FAIL] * 3
    removed, *refused = (one.what for one in found["settings"])
    assert removed == "MEDUSAQ_KV_TYPE: is no setting any more: it is f16"
    for line, name in zip(refused, ("MEDUSAQ_SLOTS", "MEDUSAQ_THREADS"), strict=True):
        assert line.startswith(f"{name}: ")
    said = {one.what: one for one in found["variables"] if "TEST_MARK" not in one.what}
    assert {one.grade for one in said.values()} == {Grade.WARN}
    assert {one.mend for one in said.values()} >= {
        "did you mean MEDUSAQ_THREADS?",
        "did you mean MEDUSAQ_KV_CELLS?",
    }
    assert any("MEDUSAQ_SLOTS in .env has no effect" in what for what in said)
    assert len(said) == 3


def test_settings_that_only_some_parts_refuse(in_process: InProcessCli, settings: Settings) -> None:
    found = examined(
        in_process,
        MEDUSAQ_METRICS_ADDRESS="0.0.0.0:9100",
        MEDUSAQ_SLOTS="64",
        MEDUSAQ_BATCH_INVARIANT="1",
    )
    assert only(found, "settings", Grade.FAIL).what.startswith("MEDUSAQ_METRICS_ADDRESS")
    found = examined(
        in_process,
        MEDUSAQ_SLOTS="64",
        MEDUSAQ_BATCH_INVARIANT="1",
        MEDUSAQ_HOST="0.0.0.0",
        MEDUSAQ_REDIS_URL=settings.redis_url,
        MEDUSAQ_KEY_PREFIX=settings.key_prefix,
    )
    assert "slots must be below 63" in found["settings"][1].what
    assert "there are no API keys" in only(found, "address", Grade.FAIL).what
    flower = only(found, "address of flower", Grade.WARN)
    assert "would let anyone see and stop tasks" in flower.what
    assert "FLOWER_BASIC_AUTH" in flower.mend


def test_an_env_file_that_cannot_be_read(in_process: InProcessCli) -> None:
    (in_process.folder / ".env").write_bytes(b"MEDUSAQ_SLOTS=\xff\n")
    found = examined(in_process)
    assert only(found, "settings", Grade.FAIL).what.startswith(".env: cannot be read")
    assert only(found, "variables", Grade.FAIL)


def test_what_is_wrong_with_several_parts_is_all_said(in_process: InProcessCli) -> None:
    (in_process.folder / "file").touch()
    (in_process.folder / "text.gguf").write_bytes(b"hello")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        found = examined(
            in_process,
            MEDUSAQ_HOST="0.0.0.0",
            MEDUSAQ_MODEL="text.gguf",
            MEDUSAQ_FILES=str(in_process.folder / "file" / "below"),
            MEDUSAQ_PORT=str(holder.getsockname()[1]),
            MEDUSAQ_REDIS_URL=f"redis://me:secret@127.0.0.1:{free_port()}/0",
        )
    assert "Redis does not say" in only(found, "address", Grade.WARN).what
    assert "text.gguf" in only(found, "model", Grade.FAIL).what
    assert only(found, "file store", Grade.FAIL)
    assert "is in use" in only(found, "port of gateway", Grade.FAIL).what
    away = only(found, "redis", Grade.FAIL)
    assert "secret" not in away.what
    assert "me:***@127.0.0.1" in away.what
    assert "model workers" not in found


def test_an_object_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    settings = Settings(_env_file=None, files="s3://nowhere/x")  # type: ignore[call-arg]  # pydantic
    [finding] = guarded("file store", partial(stack.files, settings))
    assert (finding.check, finding.grade) == ("file store", Grade.FAIL)


def test_a_broken_check_keeps_no_other_from_being_made() -> None:
    def broken() -> Iterator[Finding]:
        yield fail("x", "found", "mend")
        raise ValueError("of\nseveral lines")

    first, second = guarded("x", broken)
    assert first.what == "found"
    assert (second.grade, second.what) == (Grade.WARN, "the check failed: ValueError: of")


# What this machine cannot be brought to: the same code with other numbers.


def test_old_pythons_and_servers() -> None:
    assert [one.grade for one in machine.python((3, 10, 2))] == [Grade.FAIL]
    assert redis_server.version({"redis_version": "5.0.7"}).grade is Grade.FAIL
    assert redis_server.version({"redis_version": "7.2.4", "valkey_version": "9.1.0"}).what == "Valkey 9.1.0"


@pytest.mark.parametrize(("ahead_s", "grade"), [(0.2, Grade.OK), (-3.0, Grade.WARN), (90.0, Grade.FAIL)])
def test_clocks_that_differ(ahead_s: float, grade: Grade) -> None:
    assert redis_server.clocks(ahead_s).grade is grade


def test_disks_and_memory_that_run_out() -> None:
    assert machine.free_space("disk", 10**9, "/").grade is Grade.WARN
    assert machine.free_space("disk", 10**8, "/").grade is Grade.FAIL
    assert engine.fits(2 * 10**9, Memory(4 * 10**9, 10**9)).grade is Grade.WARN
    assert engine.fits(8 * 10**9, Memory(4 * 10**9, 10**9)).grade is Grade.FAIL


def test_packages_that_are_missing_or_of_a_wrong_version(cli: Cli, tmp_path: Path) -> None:
    """Their metadata is shadowed by other metadata that comes first on the path."""
    shadow = tmp_path / "shadow"
    for name, version in (("celery", "5.7.0"), ("torch", "1.0")):
        info = shadow / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    own = shadow / "medusaq-9.dist-info"
    own.mkdir()
    needed = ("celery==5.6.3", "torch>=2; extra == 'medusa'", "opentelemetry-sdk>=99; extra == 'tracing'")
    extras = "".join(f"Provides-Extra: {extra}\n" for extra in ("medusa", "tracing"))
    requires = "".join(f"Requires-Dist: {each}\n" for each in needed)
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: medusaq\nVersion: 9\n{extras}{requires}")
    env = {"PYTHONPATH": f"{shadow}{os.pathsep}{ROOT}"}
    found = examined(cli, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **env)
    assert "opentelemetry-sdk" in only(found, "packages[tracing]", Grade.WARN).what
    assert "packages[tracing]" not in examined(cli, **env), "nobody asks for traces"
    assert "celery is 5.7.0, and must be ==5.6.3" in only(found, "packages", Grade.FAIL).what
    assert "torch is 1.0" in only(found, "packages[medusa]", Grade.WARN).what


def test_no_compiler_where_llama_cpp_is_still_to_be_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert [*machine.compilers(engine_installed=True)] == []
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = machine.compilers(engine_installed=False)
    assert (finding.grade, finding.what.partition(" missing")[0]) == (Grade.WARN, "a C++ compiler and cmake")
    for tool in ("g++", "cmake"):
        (tmp_path / tool).symlink_to(shutil.which("true", path="/bin:/usr/bin") or "")
    [finding] = machine.compilers(engine_installed=False)
    assert finding.grade is Grade.OK
