"""The scaler of KEDA and the monitor of the Prometheus operator, as far as their fields are used here."""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from api.app import create_app
from tasks.base.settings import Settings
from tests.project.deployment.manifests import (
    FOLDER,
    KEDA,
    KUBERNETES,
    KUSTOMIZATION,
    OBJECTS,
    container_of,
    of_kind,
)

# What of two extensions is used here, and nothing else of them. Their own schemas come with their
# installation; by those a misspelt field would be dropped, and any text taken as a trigger's metadata.
TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": TEXT}
COUNT = {"type": "integer", "minimum": 0}


def _closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these properties and no other."""
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def _some(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


# After config/crd/bases/keda.sh_scaledobjects.yaml of kedacore/keda, commit 756b2de, with the limits that its
# descriptions give; of the trigger's metadata after scalers/prometheus in the documentation of KEDA 2.13.
SCALING_RULES = _closed(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    policies=_some(
        _closed(
            ("type", "value", "periodSeconds"),
            type={"enum": ["Pods", "Percent"]},
            value={"type": "integer", "minimum": 1},
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        )
    ),
)
SCALED_OBJECT = _closed(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=_closed(("name",), kind=TEXT, name=TEXT),
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    pollingInterval=COUNT,
    advanced=_closed(
        horizontalPodAutoscalerConfig=_closed(
            behavior=_closed(scaleUp=SCALING_RULES, scaleDown=SCALING_RULES)
        )
    ),
    triggers=_some(
        _closed(
            ("type", "metadata"),
            type={"const": "prometheus"},
            metricType={"enum": ["Value", "AverageValue"]},  # Utilization is for cpu and memory
            metadata=_closed(
                ("serverAddress", "query", "threshold"),
                serverAddress={"type": "string", "pattern": "^https?://"},
                query=TEXT,
                threshold={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
            ),
        )
    ),
)

# After example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml of prometheus-operator 0.91.0,
# which would also do without endpoints, their authorization, and the name of a secret.
DURATION = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
POD_MONITOR = _closed(
    ("selector", "podMetricsEndpoints"),
    jobLabel=TEXT,
    selector=_closed(matchLabels=TEXTS),
    podMetricsEndpoints=_some(
        _closed(
            ("port", "authorization"),
            port=TEXT,
            path={"type": "string", "pattern": "^/"},
            interval={"type": "string", "pattern": DURATION, "minLength": 1},
            authorization=_closed(
                ("type", "credentials"),
                type={"const": "Bearer"},
                credentials=_closed(("name", "key"), name=TEXT, key=TEXT),
            ),
        )
    ),
)


def test_the_scaler_is_one_that_keda_takes_and_scales_the_worker() -> None:
    (scaler,) = (each for each in OBJECTS if KEDA in each["apiVersion"])
    assert (scaler["apiVersion"], scaler["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaler["spec"]
    jsonschema.validate(spec, SCALED_OBJECT)
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    scaled_by_hand = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "worker"},
        "spec": {"scaleTargetRef": spec["scaleTargetRef"], "maxReplicas": 1, "behavior": behaviour},
    }
    kubernetes_validate.validate(scaled_by_hand, KUBERNETES, strict=True)
    target = of_kind(spec["scaleTargetRef"]["kind"])[spec["scaleTargetRef"]["name"]]
    assert "replicas" not in target["spec"], "applying it again would undo the scaler"
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    asked = [trigger["metadata"]["query"] for trigger in spec["triggers"]]
    for query, priority in zip(asked, ("interactive", "bulk"), strict=True):
        assert query == f'max(medusaq_queue_oldest_seconds{{priority="{priority}"}})'


@pytest.mark.parametrize(
    ("kind", "schema", "path", "value"),
    [
        ("ScaledObject", SCALED_OBJECT, ("minReplicas",), 1),
        ("ScaledObject", SCALED_OBJECT, ("triggers", 0, "metadata", "threshold"), 5),
        ("ScaledObject", SCALED_OBJECT, ("triggers", 0, "metadata", "metricType"), "Value"),
        ("PodMonitor", POD_MONITOR, ("endpoints",), []),
        ("PodMonitor", POD_MONITOR, ("podMetricsEndpoints", 0, "interval"), "15 s"),
        ("PodMonitor", POD_MONITOR, ("podMetricsEndpoints", 0, "authorization", "credentials"), {"key": "k"}),
    ],
)
def test_a_wrong_field_of_an_extension_would_be_found(
    kind: str, schema: dict[str, Any], path: tuple[str | int, ...], value: Any
) -> None:
    (each,) = of_kind(kind).values()
    spec = wrong = yaml.safe_load(yaml.safe_dump(each["spec"]))
    for step in path[:-1]:
        wrong = wrong[step]
    wrong[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, schema)


def test_prometheus_asks_the_gateways_with_a_key_and_knows_them_by_the_name_of_the_alerts() -> None:
    spec = of_kind("PodMonitor")["medusaq"]["spec"]
    jsonschema.validate(spec, POD_MONITOR)
    template = of_kind("Deployment")["medusaq-gateway"]["spec"]["template"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in container_of(template["spec"])["ports"]]
    assert endpoint["path"] in create_app(Settings(_env_file=None)).openapi()["paths"]  # type: ignore[call-arg]
    (labels,) = KUSTOMIZATION["labels"]
    assert labels["includeTemplates"]
    assert (labels["pairs"] | template["metadata"]["labels"])[spec["jobLabel"]] == "medusaq"
    secret = endpoint["authorization"]["credentials"]
    said = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    assert f"secret generic {secret['name']} --from-literal={secret['key']}=" in said
