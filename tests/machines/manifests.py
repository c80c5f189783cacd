"""The Kubernetes manifests as kubectl itself would send them, against Kubernetes' schemas.

No API server is asked: none is in Debian's packages, in PyPI or in npm.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.project.deployment.manifests import FOLDER, GPU, KUBERNETES, is_extension


def rendered(kubectl: Path, folder: Path) -> list[dict[str, Any]]:
    """What `kubectl apply -k` sends, with overlays, patches and names applied. Raises CalledProcessError."""
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def check(kubectl: Path) -> list[str]:
    """A line for each folder; raises CalledProcessError and ValidationError."""
    told = []
    for folder in (FOLDER, GPU):
        objects = rendered(kubectl, folder)
        known = [each for each in objects if not is_extension(each)]
        for each in known:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
        extensions = len(objects) - len(known)
        others = f", {extensions} of extensions are checked by a test" if extensions else ""
        told.append(f"{folder.name}: {len(known)} objects fit the schemas of {KUBERNETES}{others}")
    return told
