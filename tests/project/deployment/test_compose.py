"""The container files against the code: no engine runs here, so every name in them is checked instead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cli.main import app
from tasks.base.setting_names import ENV_PREFIX
from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.support.workers import Workers, environment, wait_until

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
CUDA_COMPOSE = yaml.safe_load((ROOT / "docker-compose.cuda.yml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MONITORING = {name: service for name, service in SERVICES.items() if "profiles" in service}
OURS = {name: service for name, service in SERVICES.items() if name not in ("redis", *MONITORING)}
FILES_FOLDER = "/files"  # the volume's; the setting's own default is in a working folder, here read-only
INTERPOLATION = re.compile(r"\$\{(?P<name>\w+)(?P<rule>:[-?])?(?P<rest>.*)\}$")
INTERPOLATED = re.compile(r"\$\{\w+:-([^}]*)\}")
SHELL = {name: value for name, value in os.environ.items() if not name.startswith(("MEDUSAQ_", "FLOWER_"))}
STAGES = {
    stage["name"]: stage
    for stage in (
        match.groupdict()
        for match in re.finditer(
            r"^FROM (?P<base>\S+) AS (?P<name>\S+)\n(?P<lines>(?:(?!FROM ).*\n?)*)", DOCKERFILE, re.MULTILINE
        )
    )
}


def _variables() -> list[tuple[str, str, Any]]:
    return [
        (name, key, value)
        for name, service in OURS.items()
        for key, value in service["environment"].items()
        if key.startswith(ENV_PREFIX)
    ]


def _field(variable: str) -> str:
    return variable.removeprefix(ENV_PREFIX).lower()


def _chain(stage: str) -> str:
    """The lines of a stage and of every stage that it stands on or copies from."""
    own = STAGES[stage]
    below = [own["base"], *re.findall(r"--from=(\S+)", own["lines"])]
    return own["lines"] + "".join(_chain(name) for name in below if name in STAGES)


def _seconds(duration: str) -> int:
    assert duration.endswith("s"), duration
    return int(duration.removesuffix("s"))


def test_the_services_are_the_five_of_the_system_and_those_that_watch_it() -> None:
    assert set(SERVICES) == {"redis", "gateway", "worker", "io", "flower", *MONITORING}
    assert set(MONITORING) == {"prometheus", "grafana"}


@pytest.mark.parametrize("name", MONITORING)
def test_a_watching_service_finds_its_files_and_is_on_loopback_only(name: str) -> None:
    service = MONITORING[name]
    assert service["profiles"] == ["monitoring"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    for volume in service["volumes"]:
        source, _, _ = INTERPOLATED.sub(r"\1", volume).partition(":")
        assert (
            (ROOT / source).exists()
            if source.startswith("./")
            else source in {*COMPOSE["volumes"], "/dev/null"}
        )


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{_inner_port('prometheus')}"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "medusaq.yml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in MONITORING["grafana"]["volumes"]]
    shown = MONITORING["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert shown in mounted
    assert str(Path(shown).parent) == provider["options"]["path"]


def test_prometheus_asks_the_gateway_where_it_listens() -> None:
    folder = ROOT / "deploy" / "prometheus"
    [scrape] = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"gateway:{_inner_port('gateway')}"]}]


def _inner_port(name: str) -> str:
    return str(SERVICES[name]["ports"][0].rpartition(":")[2])


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_command_that_exists(name: str) -> None:
    program, command = OURS[name]["command"]
    assert program in PYPROJECT["project"]["scripts"]
    assert command == name
    assert command in typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["gateway", "worker", "flower"])
def test_an_image_runs_the_same_command_as_its_service(name: str) -> None:
    assert f'CMD ["medusaq", "{name}"]' in STAGES[name]["lines"]


@pytest.mark.parametrize(("service", "variable", "value"), _variables())
def test_a_variable_is_a_setting_with_its_default(service: str, variable: str, value: str | None) -> None:
    field = _field(variable)
    assert field in Settings.model_fields, f"{service}: {variable}"
    if value is None:  # handed through when set
        return
    if field == "publish_address":  # where Docker publishes the ports, whatever listens inside
        assert value == "${PUBLISH_ADDRESS:-127.0.0.1}"
        return
    match = INTERPOLATION.match(value)
    if match is None:
        Settings(_env_file=None, **{field: value})  # type: ignore[call-arg, arg-type]  # raises when refused
        return
    assert match["name"] == variable
    assert match["rule"] == ":-"
    parsed = Settings(_env_file=None, **{field: match["rest"]})  # type: ignore[call-arg, arg-type]
    default = FILES_FOLDER if field == "files" else Settings.model_fields[field].default
    assert getattr(parsed, field) == default


@pytest.mark.parametrize(("name", "field"), [("gateway", "port"), ("flower", "flower_port")])
def test_a_port_is_the_one_the_code_listens_on(name: str, field: str) -> None:
    default = Settings.model_fields[field].default
    service = SERVICES[name]
    published = re.fullmatch(r"\$\{PUBLISH_ADDRESS:-127\.0\.0\.1\}:\$\{\w+:-(\d+)\}:(\d+)", *service["ports"])
    assert published is not None
    assert {int(published[1]), int(published[2])} == {default}
    assert service["environment"][ENV_PREFIX + field.upper()] == str(default)
    assert f"EXPOSE {default}\n" in STAGES[name]["lines"]


def test_only_the_gateway_and_flower_are_published() -> None:
    assert {name for name, service in OURS.items() if "ports" in service} == {"gateway", "flower"}


def test_the_worker_can_be_scaled() -> None:
    assert not {"container_name", "ports", "hostname"} & set(SERVICES["worker"])


def test_a_worker_has_time_to_drain_before_it_is_killed() -> None:
    assert _seconds(SERVICES["worker"]["stop_grace_period"]) > Settings.model_fields["drain_s"].default
    assert not any(variable == "MEDUSAQ_DRAIN_S" for _, variable, _ in _variables())


def test_every_service_waits_for_a_healthy_redis_and_has_a_check_of_its_own() -> None:
    assert "redis-cli ping" in SERVICES["redis"]["healthcheck"]["test"][1]
    for name, service in OURS.items():
        assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}
        check = service.get("healthcheck", {}).get("test") or STAGES[service["build"]["target"]]["lines"]
        assert f"/opt/health.py {name}" in re.sub(r"[\[\]'\",]", "", str(check)).replace("CMD ", "")


def test_redis_keeps_what_it_was_given() -> None:
    command = SERVICES["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert "redis" in COMPOSE["volumes"]


def test_the_gateway_and_the_io_worker_share_the_files_and_may_write_them() -> None:
    for name in ("gateway", "io"):
        service = SERVICES[name]
        assert service["volumes"] == [f"files:{FILES_FOLDER}"]
        assert service["environment"]["MEDUSAQ_FILES"] == f"${{MEDUSAQ_FILES:-{FILES_FOLDER}}}"
        lines = _chain(service["build"]["target"])
        assert f"install --directory --owner=medusaq {FILES_FOLDER} " in lines
        assert '".[s3,tracing]"' in lines
    assert "files" in COMPOSE["volumes"]
    for name in ("worker", "flower"):
        assert "MEDUSAQ_FILES" not in SERVICES[name]["environment"]


def test_who_takes_work_and_who_sends_it_on_agree_what_it_may_be_and_where_webhooks_may_lead() -> None:
    names = ("MAX_BODY_BYTES", "MAX_BATCH_LINES", "DEFAULT_MAX_TOKENS")
    said = [f"MEDUSAQ_{name}" for name in names]
    said += [f"MEDUSAQ_WEBHOOK_{name}" for name in ("SECRETS", "ALLOW", "DENY")]
    gateway, io = (SERVICES[name]["environment"] for name in ("gateway", "io"))
    assert [gateway[name] for name in said] == [io[name] for name in said]


def test_the_fast_profile_reaches_everybody() -> None:
    text = (ROOT / "docs" / "explanation" / "chaos.md").read_text(encoding="utf-8")
    (profile,) = re.findall(r"^MEDUSAQ_LEASE_MS=.*$", text, re.MULTILINE)
    names = {pair.partition("=")[0] for pair in profile.split()}
    for name, service in OURS.items():
        assert names <= service["environment"].keys(), name


def test_traces_can_be_asked_for_where_spans_are_made() -> None:
    for name in ("gateway", "worker"):
        service = SERVICES[name]
        assert service["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] is None, "handed through when set"
        assert "tracing]" in _chain(service["build"]["target"])


def test_flower_keeps_what_it_has_seen_where_it_may_write() -> None:
    service = SERVICES["flower"]
    [volume] = service["volumes"]
    name, folder = volume.split(":")
    assert name in COMPOSE["volumes"]
    assert f" {folder}\n" in _chain(service["build"]["target"])
    assert service["environment"]["FLOWER_DB"].startswith(f"{folder}/")
    assert service["environment"]["FLOWER_PERSISTENT"] == "True"


def test_flower_gets_its_password_from_outside_only() -> None:
    match = INTERPOLATION.match(SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"])
    assert match is not None
    assert match["rule"] == ":?"
    assert match["rest"]
    assert "FLOWER_BASIC_AUTH" not in DOCKERFILE


@pytest.mark.parametrize("name", ["gateway", "flower"])
def test_what_is_published_knows_where(name: str) -> None:
    environment_of = SERVICES[name]["environment"]
    assert environment_of["MEDUSAQ_HOST"] == "0.0.0.0"
    assert SERVICES[name]["ports"][0].startswith(f"{environment_of['MEDUSAQ_PUBLISH_ADDRESS']}:")
    assert environment_of.get("MEDUSAQ_ALLOW_OPEN") in (None, "${MEDUSAQ_ALLOW_OPEN:-false}")


def test_every_target_is_a_stage() -> None:
    assert {service["build"]["target"] for service in OURS.values()} <= set(STAGES)


def test_both_kinds_of_worker_are_complete() -> None:
    chosen = [stage["base"] for stage in STAGES.values() if "${CUDA}" in stage["base"]]
    assert chosen
    for base in chosen:
        assert {base.replace("${CUDA}", kind) for kind in "01"} <= set(STAGES)
    assert "ARG CUDA=0\n" in DOCKERFILE
    assert "-DGGML_CUDA=on" in STAGES["toolchain-cuda1"]["lines"]
    assert SERVICES["worker"]["build"]["args"]["CUDA"] == "0"
    assert CUDA_COMPOSE["services"]["worker"]["build"]["args"]["CUDA"] == "1"


@pytest.mark.parametrize("target", ["gateway", "flower"])
def test_a_light_image_holds_no_engine_library_and_no_compiler(target: str) -> None:
    lines = _chain(target)
    installs = re.findall(r"pip install (.*)", lines)
    assert installs
    assert all(install.startswith("-c requirements.lock ") for install in installs)
    assert not re.search(r"llama|torch|build-essential|\[worker\]", lines)


def test_nothing_runs_as_root() -> None:
    for service in OURS.values():
        assert "USER medusaq\n" in STAGES[service["build"]["target"]]["lines"]
        assert service["cap_drop"] == ["ALL"]


def test_every_copied_file_exists_and_is_let_through() -> None:
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    sources = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert sources == sent
    assert all((ROOT / source).exists() for source in sources)


def test_every_package_is_copied() -> None:
    find = PYPROJECT["tool"]["setuptools"]["packages"]["find"]
    packages = {pattern.rstrip("*") for pattern in find["include"]}
    for stage in ("light-build", "worker-build"):
        copied = set(re.findall(r"^COPY (\w+) ", STAGES[stage]["lines"], re.MULTILINE))
        assert packages <= copied, stage


def _compose(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "compose", *arguments, "config", "--quiet"],
        cwd=ROOT,
        env=SHELL | variables,
        capture_output=True,
        text=True,
    )


def _has_compose() -> bool:
    try:
        return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_compose = pytest.mark.skipif(not _has_compose(), reason="docker has no compose plugin here")


@needs_compose
@pytest.mark.parametrize("files", [(), ("-f", "docker-compose.yml", "-f", "docker-compose.cuda.yml")])
def test_compose_accepts_the_files(files: tuple[str, ...]) -> None:
    done = _compose(*files, FLOWER_BASIC_AUTH="user:password")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@needs_compose
def test_compose_refuses_to_start_without_a_password() -> None:
    done = _compose()
    assert done.returncode != 0
    assert "FLOWER_BASIC_AUTH" in done.stderr
    assert "needs a password" in done.stderr


def _health(service: str, settings: Settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "docker/health.py", service],
        cwd=ROOT,
        env=environment(settings),
        capture_output=True,
        text=True,
    )


@pytest.mark.stack
def test_the_checks_pass_for_a_living_service_and_fail_for_a_dead_one(
    settings: Settings, store: JobStore, workers: Workers
) -> None:
    dead = _health("worker", settings)
    assert dead.returncode == 1
    assert dead.stderr.startswith("no living worker on ")
    elsewhere = WorkerInfo("w", "m", 8, 1, pid=1, host="another-machine", started_at=0.0)
    Registry(store.db, settings.worker_ttl_s).refresh(elsewhere)
    assert _health("worker", settings).returncode == 1, "another container's worker"

    workers.model(settings)
    assert _health("worker", settings).returncode == 0

    assert _health("io", settings).returncode == 1, "a model worker is no io worker"
    io = subprocess.Popen([sys.executable, "-m", "cli", "io"], cwd=ROOT, env=environment(settings))
    try:
        wait_until(lambda: _health("io", settings).returncode == 0, 40, alive=lambda: io.poll() is None)
    finally:
        io.terminate()
        io.wait(20)


@pytest.mark.parametrize("service", ["gateway", "flower"])
def test_a_check_says_in_one_line_why_it_failed(service: str, settings: Settings) -> None:
    closed = settings.model_copy(update={"port": 1, "flower_port": 1})
    done = _health(service, closed)
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_check_is_refused(settings: Settings) -> None:
    assert "usage: health.py gateway|worker|io|flower" in _health("redis", settings).stderr
