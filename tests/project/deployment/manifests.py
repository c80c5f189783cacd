"""The manifests of deploy/kubernetes, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
KUBERNETES_FOLDER = ROOT / "deploy" / "kubernetes"
FOLDER, GPU = KUBERNETES_FOLDER / "base", KUBERNETES_FOLDER / "gpu"
KUBERNETES = "1.33"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
KEDA, OPERATOR = "keda.sh/", "monitoring.coreos.com/"


def _read(folder: Path) -> list[dict[str, Any]]:
    paths = [path for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [each for path in paths for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


OBJECTS = _read(FOLDER)
GPU_OBJECTS = _read(GPU)
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in OBJECTS
    if each["kind"] in ("Deployment", "StatefulSet")
}
OURS = {name.removeprefix("medusaq-"): pod for name, pod in PODS.items() if name != "redis"}
(GPU_WORKER,) = (each for each in GPU_OBJECTS if each["kind"] == "Deployment")


def is_extension(each: dict[str, Any]) -> bool:
    return str(each["apiVersion"]).startswith((KEDA, OPERATOR))


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind}


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return dict(container)
