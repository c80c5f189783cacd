"""The manifests against Kubernetes' own schemas, and every name in them against the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from flower.options import default_options

from api.app import create_app
from cli.main import app
from tasks.base.sentinel_url import DEFAULT_PORT
from tasks.base.setting_names import ENV_PREFIX
from tasks.base.settings import Settings
from tests.project.deployment.manifests import (
    FOLDER,
    GPU,
    GPU_OBJECTS,
    GPU_WORKER,
    KUBERNETES,
    KUSTOMIZATION,
    OBJECTS,
    OURS,
    PODS,
    ROOT,
    container_of,
    is_extension,
    of_kind,
)

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]

FLOWER_PREFIX = "FLOWER_"  # of Flower's own options
EXIT_S = 10  # to stop once the jobs are drained or handed back


def _name(each: dict[str, Any]) -> str:
    return f"{each['kind']}-{each['metadata']['name']}"


def _variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def _seconds_to_drain(pod: dict[str, Any]) -> float:
    value = _variables(container_of(pod)).get("MEDUSAQ_DRAIN_S", Settings.model_fields["drain_s"].default)
    return float(value)


@pytest.mark.parametrize("each", [each for each in OBJECTS if not is_extension(each)], ids=_name)
def test_kubernetes_knows_every_field(each: dict[str, Any]) -> None:
    kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_a_wrong_field_would_be_found() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(of_kind("Deployment")["medusaq-io"]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_the_gpu_overlay_stays_valid_once_applied() -> None:
    """Its patch, put into the worker as kustomize puts it: lists by name."""
    worker = yaml.safe_load(yaml.safe_dump(of_kind("Deployment")["medusaq-worker"]))
    kubernetes_validate.validate(_patched(worker, GPU_WORKER), KUBERNETES, strict=True)
    for each in GPU_OBJECTS:
        assert each["metadata"]["namespace"] == KUSTOMIZATION["namespace"]


def _patched(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {key: _patched(under.get(key), value) for key, value in over.items()}
    if isinstance(under, list) and isinstance(over, list):
        named = {each["name"]: each for each in under}
        patches = {each["name"]: _patched(named.get(each["name"]), each) for each in over}
        return list((named | patches).values())
    return over


def test_every_file_is_listed_and_there() -> None:
    text = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    optional = set(re.findall(r"^  # - (\S+)", text, re.MULTILINE))
    assert optional == {"flower.yaml"}
    listed = {*KUSTOMIZATION["resources"], *optional, "kustomization.yaml"}
    assert listed == {path.name for path in FOLDER.glob("*.yaml")}
    gpu = yaml.safe_load((GPU / "kustomization.yaml").read_text(encoding="utf-8"))
    named = {*gpu["resources"], *(patch["path"] for patch in gpu["patches"]), "kustomization.yaml"}
    assert named - {"../base"} == {path.name for path in GPU.glob("*.yaml")}


@pytest.mark.parametrize("folder", [FOLDER, GPU], ids=lambda folder: folder.name)
def test_no_folder_is_built_from_one_that_it_lies_in(folder: Path) -> None:
    """kustomize takes that for a cycle."""
    built = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    found = [(folder / each).resolve() for each in built]
    assert all(each.exists() for each in found)
    assert not {folder.resolve(), *folder.resolve().parents}.intersection(found)


@pytest.mark.parametrize("name", OURS)
def test_a_pod_runs_a_command_of_an_image_that_is_built(name: str) -> None:
    container = container_of(OURS[name])
    program, command = container["args"]
    assert program in SCRIPTS
    assert command == name
    assert command in typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert container["image"] == COMPOSE[name]["image"]
    names = {each["name"]: each.get("newName", each["name"]) for each in KUSTOMIZATION["images"]}
    target = names[container["image"]].removeprefix("medusaq-")
    assert target == COMPOSE[name]["build"]["target"]
    assert re.search(rf"^FROM \S+ AS {target}$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize(
    "container", [*map(container_of, OURS.values()), container_of(GPU_WORKER["spec"]["template"]["spec"])]
)
def test_every_variable_is_a_setting_that_is_taken(container: dict[str, Any]) -> None:
    values = _variables(container) | of_kind("ConfigMap")["medusaq"]["data"]
    theirs = {name for name in values if name.startswith(FLOWER_PREFIX)}
    assert all(name.removeprefix(FLOWER_PREFIX).lower() in default_options for name in theirs)
    fields = {name.removeprefix(ENV_PREFIX).lower(): values[name] for name in values.keys() - theirs}
    assert fields.keys() <= Settings.model_fields.keys()
    Settings(_env_file=None, **fields)  # type: ignore[call-arg, arg-type]  # raises when refused


@pytest.mark.parametrize("name", OURS)
def test_secrets_are_referenced_and_never_written_down(name: str) -> None:
    container = container_of(OURS[name])
    secrets = {
        each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each
    }
    assert secrets["MEDUSAQ_REDIS_URL"] == {"name": "medusaq-redis", "key": "url"}
    assert not of_kind("Secret")
    said = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    for secret in secrets.values():
        assert re.search(rf"{secret['name']}\b", said)
        assert f"{secret['key']}=" in said


@pytest.mark.parametrize(("name", "field"), [("gateway", "port"), ("flower", "flower_port")])
def test_a_port_is_the_one_the_code_listens_on(name: str, field: str) -> None:
    container = container_of(OURS[name])
    (port,) = container["ports"]
    assert str(port["containerPort"]) == _variables(container)[f"{ENV_PREFIX}{field.upper()}"]
    assert port["containerPort"] == Settings.model_fields[field].default
    assert _variables(container)["MEDUSAQ_HOST"] == "0.0.0.0"


def test_the_gateways_probes_ask_what_it_answers() -> None:
    container = container_of(OURS["gateway"])
    paths = create_app(Settings(_env_file=None)).openapi()["paths"]  # type: ignore[call-arg]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in paths
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]


@pytest.mark.parametrize("name", ["worker", "io"])
def test_a_worker_is_asked_by_its_health_check_and_never_killed_by_it(name: str) -> None:
    container = container_of(OURS[name])
    assert container["readinessProbe"]["exec"]["command"] == ["python", "/opt/health.py", name]
    assert f"def {name}()" in (ROOT / "docker" / "health.py").read_text(encoding="utf-8")
    assert "livenessProbe" not in container, "the check needs Redis, and a worker outlives it"


@pytest.mark.parametrize("name", ["worker", "io"])
def test_a_worker_has_time_to_drain_before_it_is_killed(name: str) -> None:
    assert OURS[name]["terminationGracePeriodSeconds"] >= _seconds_to_drain(OURS[name]) + EXIT_S


@pytest.mark.parametrize("name", PODS)
def test_a_pod_may_do_little_and_says_what_it_needs(name: str) -> None:
    pod, container = PODS[name], container_of(PODS[name])
    assert pod["securityContext"]["runAsNonRoot"]
    if name != "redis":
        assert f"--uid {pod['securityContext']['runAsUser']} medusaq" in DOCKERFILE
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "a Service named medusaq would set MEDUSAQ_PORT"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    mounts = {each["name"] for each in container["volumeMounts"]}
    claims = of_kind("StatefulSet").get(name, {}).get("spec", {}).get("volumeClaimTemplates", [])
    assert mounts == {each["name"] for each in [*pod.get("volumes", []), *(c["metadata"] for c in claims)]}


@pytest.mark.parametrize(
    "kind", ["Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "StatefulSet", "PodMonitor"]
)
def test_a_selector_finds_its_pods(kind: str) -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in OBJECTS
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    for name, each in of_kind(kind).items():
        selector = each["spec"].get("selector", each["spec"].get("podSelector"))
        wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
        assert any(wanted.items() <= found.items() for found in labels), name
        for expression in selector.get("matchExpressions", ()):
            values = {found.get(expression["key"]) for found in labels}
            assert set(expression["values"]) <= values, name


def test_what_may_be_reached_elsewhere_stands_ready() -> None:
    """Each comment, taken out, is a rule that Kubernetes takes, for the port that the code goes to."""
    text = (FOLDER / "network-policy.yaml").read_text(encoding="utf-8")
    taken_out = re.sub(r"^    # (- |  )", r"    \1", text, flags=re.MULTILINE)
    policies = {each["metadata"]["name"]: each for each in yaml.safe_load_all(taken_out)}
    for each in policies.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    assert _ports(policies["medusaq-to-redis"]) == {6379, DEFAULT_PORT, 4318}
    assert _ports(policies["medusaq-to-redis"]) - _ports(of_kind("NetworkPolicy")["medusaq-to-redis"])
    assert _ports(policies["medusaq-to-world"]) > {80, 443}


def _ports(policy: dict[str, Any]) -> set[int]:
    return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}


def test_redis_keeps_what_it_was_given() -> None:
    arguments = container_of(PODS["redis"])["args"]
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")
    said = COMPOSE["redis"]
    assert container_of(PODS["redis"])["image"] == said["image"]


def test_those_that_share_files_mount_the_same_claim() -> None:
    for name in ("gateway", "io"):
        claims = [each.get("persistentVolumeClaim") for each in OURS[name]["volumes"]]
        assert {"claimName": "medusaq-files"} in claims
        assert {"name": "files", "mountPath": "/files"} in container_of(OURS[name])["volumeMounts"]
        assert _variables(container_of(OURS[name]))["MEDUSAQ_FILES"] == "/files"
    assert of_kind("PersistentVolumeClaim")["medusaq-files"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_flower_keeps_what_it_has_seen_where_it_may_write() -> None:
    """As the only one: two would write over each other."""
    pod, container = OURS["flower"], container_of(OURS["flower"])
    claims = {each["name"]: each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["volumes"]}
    folders = {each["mountPath"]: claims[each["name"]] for each in container["volumeMounts"]}
    variables = _variables(container)
    assert variables["FLOWER_PERSISTENT"] == COMPOSE["flower"]["environment"]["FLOWER_PERSISTENT"]
    claim = folders[str(Path(variables["FLOWER_DB"]).parent)]
    assert claim in of_kind("PersistentVolumeClaim")
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
    spec = of_kind("Deployment")["medusaq-flower"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
