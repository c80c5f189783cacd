"""The images that ours stand on: the real ones where a registry can be reached, else stand-ins.

Those are made of Debian packages, with Python 3.11 instead of 3.12; what is built on them has nearly the size
and the speed of the real ones. They are kept for the next run.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.containers.docker import OURS, DockerFailed, docker, has_image

PYTHON, REDIS = "python:3.12-slim-bookworm", "redis:8-alpine"
MONITORING = ("prom/prometheus:v3.5.0", "grafana/grafana:12.1.0")
STANDINS = Path(__file__).parent / "standins"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")  # of this machine, which may be behind a proxy
PULL_S = 300.0
MIRROR = "http://deb.debian.org/debian"
PACKAGES = {
    PYTHON: ("bookworm", "ca-certificates,netbase,tzdata,python3,python3-venv"),
    REDIS: ("trixie", "redis-server,redis-tools"),
}


@dataclass(frozen=True, slots=True)
class Bases:
    """Name of an image -> the image to use in its place; itself where it is the real one."""

    images: dict[str, str]
    monitoring: bool  # its images are there

    @property
    def told(self) -> str:
        if all(name == image for name, image in self.images.items()):
            return "on the official images"
        return "on stand-ins of Debian packages for the official images, since no registry can be reached"


def find(mirror: str) -> Bases:
    """Raises DockerFailed where an image can be neither had nor made."""
    if _pulled(PYTHON):
        return Bases({name: name for name in (PYTHON, REDIS) if _pull(name)}, all(map(_pulled, MONITORING)))
    return Bases({name: _standin(name, mirror) for name in (PYTHON, REDIS)}, all(map(has_image, MONITORING)))


def _pulled(image: str) -> bool:
    try:
        return _pull(image)
    except DockerFailed as error:
        print(f"{image} cannot be had: {str(error).splitlines()[-1].strip()}", flush=True)
        return False


def _pull(image: str) -> bool:
    if not has_image(image):
        docker("pull", "--quiet", image, timeout_s=PULL_S)
    return True


def _standin(image: str, mirror: str) -> str:
    short = image.partition(":")[0]
    name = f"{OURS}/standin-{short}"
    if has_image(name):
        return name
    if shutil.which("mmdebstrap") is None:
        raise DockerFailed(f"{image} cannot be had, and mmdebstrap is not installed, which makes stand-ins")
    suite, packages = PACKAGES[image]
    print(f"making a stand-in for {image} of packages of {suite}", flush=True)
    with tempfile.TemporaryDirectory(prefix="medusaq-containers-") as temporary:
        folder = Path(temporary)
        archive = folder / "system.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", suite]
        done = subprocess.run([*command, str(archive), mirror], capture_output=True, text=True)
        if done.returncode:
            raise DockerFailed(f"mmdebstrap: {done.stderr.strip()[-2000:]}")
        docker("import", str(archive), f"{name}:system")
        archive.unlink()
        shutil.copy(AUTHORITIES, folder)
        for file in STANDINS.iterdir():
            shutil.copy(file, folder)
        docker("build", "-t", name, "-f", str(folder / f"{short}.Dockerfile"), str(folder))
    return name
