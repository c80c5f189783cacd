"""The container files against the code: no engine runs here, so every name in them is checked instead."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cli.main import app
from tasks.base.setting_names import ENV_PREFIX
from tasks.base.settings import Settings
from tests.project.deployment.container_files import (
    COMPOSE,
    DOCKERFILE,
    MONITORING,
    OURS,
    PYPROJECT,
    ROOT,
    SERVICES,
    STAGES,
    chain,
    seconds,
)

INTERPOLATED = re.compile(r"\$\{\w+:-([^}]*)\}")
INTERPOLATION = re.compile(r"\$\{(?P<name>\w+)(?P<rule>:[-?])?(?P<rest>.*)\}$")
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
FILES_FOLDER = "/files"  # the volume's; the setting's own default is in a working folder, here read-only
SHELL = {name: value for name, value in os.environ.items() if not name.startswith(("MEDUSAQ_", "FLOWER_"))}


def _variables() -> list[tuple[str, str, Any]]:
    return [
        (name, key, value)
        for name, service in OURS.items()
        for key, value in service["environment"].items()
        if key.startswith(ENV_PREFIX)
    ]


def _field(variable: str) -> str:
    return variable.removeprefix(ENV_PREFIX).lower()


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


NOT_NAMED = {
    "api_key": "of commands, which run outside",
    "drain_s": "must stay below stop_grace_period",
    "engine_factory": "for development",
    "flower_basic_auth": "Flower's own variable has the same",
    "key_prefix": "the stack has a Redis of its own",
    "metrics_address": "gateways show what workers measure",
}


def test_every_setting_is_handed_on_or_is_none_of_a_container() -> None:
    named = {_field(variable) for _, variable, _ in _variables()}
    assert set(Settings.model_fields) - named == set(NOT_NAMED)


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
    assert seconds(SERVICES["worker"]["stop_grace_period"]) > Settings.model_fields["drain_s"].default
    assert not any(variable == "MEDUSAQ_DRAIN_S" for _, variable, _ in _variables())


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
        lines = chain(service["build"]["target"])
        assert f"install --directory --owner=medusaq {FILES_FOLDER} " in lines
        assert '".[s3,tracing]"' in lines
    assert "files" in COMPOSE["volumes"]
    for name in ("worker", "flower"):
        assert "MEDUSAQ_FILES" not in SERVICES[name]["environment"]


def test_who_takes_work_and_who_sends_it_on_agree_what_it_may_be_and_where_webhooks_may_lead() -> None:
    names = ("MAX_BODY_BYTES", "MAX_BATCH_LINES", "DEFAULT_MAX_TOKENS", "MODEL_ALIASES")
    names += ("MAX_FILE_BYTES", "MAX_FILES_BYTES")
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
        assert "tracing]" in chain(service["build"]["target"])


def test_flower_keeps_what_it_has_seen_where_it_may_write() -> None:
    service = SERVICES["flower"]
    [volume] = service["volumes"]
    name, folder = volume.split(":")
    assert name in COMPOSE["volumes"]
    assert f" {folder}\n" in chain(service["build"]["target"])
    assert service["environment"]["FLOWER_DB"].startswith(f"{folder}/")
    assert service["environment"]["FLOWER_PERSISTENT"] == "True"


def test_flower_gets_its_password_from_outside_only() -> None:
    match = INTERPOLATION.match(SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"])
    assert match is not None
    assert match["rule"] == ":?"
    assert "put FLOWER_BASIC_AUTH=user:password into the file .env first" in match["rest"]
    assert "FLOWER_BASIC_AUTH" not in DOCKERFILE


def test_the_recommended_commands_begin_with_the_password() -> None:
    """Compose refuses each of them without it."""
    recommended = re.findall(r"^#   (?=\S)(.*)$", COMPOSE_TEXT, re.MULTILINE)
    first, *others = recommended
    assert re.fullmatch(r'echo "FLOWER_BASIC_AUTH=\w+:\$\(.*\)" >> \.env', first)
    assert all("docker compose" in command for command in others)


def test_the_folder_of_models_is_there_and_a_mistyped_one_is_not_made() -> None:
    """Docker would make it as root."""
    [models] = [volume for volume in SERVICES["worker"]["volumes"] if isinstance(volume, dict)]
    assert models["source"] == "${MODELS_DIR:-./models}"
    assert models["read_only"] is True
    assert models["bind"] == {"create_host_path": False}
    tracked = subprocess.check_output(["git", "ls-files", "models"], cwd=ROOT, text=True).split()
    assert tracked == ["models/README.md"]


def test_a_worker_keeps_what_it_measured_in_a_volume_of_its_user() -> None:
    service = SERVICES["worker"]
    assert service["read_only"] is True
    assert "cache:/home/medusaq/.cache" in service["volumes"]
    assert "cache" in COMPOSE["volumes"]
    lines = STAGES["worker"]["lines"]
    made = lines.index("install --directory --owner=medusaq /home/medusaq/.cache\n")
    assert made < lines.index("USER medusaq\n")
    assert "XDG_CACHE_HOME" not in service["environment"], "the engine looks below the home folder"


def test_redis_is_as_confined_as_the_rest() -> None:
    shared = COMPOSE["x-hardened"]
    assert shared["read_only"] is True
    assert shared["cap_drop"] == ["ALL"]
    for service in (SERVICES["redis"], *OURS.values()):
        assert {name: service[name] for name in shared} == shared
    assert SERVICES["redis"]["user"] == "redis", "root without capabilities could not become it"


@pytest.mark.parametrize("name", ["gateway", "flower"])
def test_what_is_published_knows_where(name: str) -> None:
    environment_of = SERVICES[name]["environment"]
    assert environment_of["MEDUSAQ_HOST"] == "0.0.0.0"
    assert SERVICES[name]["ports"][0].startswith(f"{environment_of['MEDUSAQ_PUBLISH_ADDRESS']}:")
    assert environment_of.get("MEDUSAQ_ALLOW_OPEN") in (None, "${MEDUSAQ_ALLOW_OPEN:-false}")


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
    assert "put FLOWER_BASIC_AUTH=user:password into the file .env first" in done.stderr
