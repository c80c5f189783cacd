"""What the hosts run beside our own services, and how it is had."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.environments import install
from tests.support.workers import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ENVIRONMENT = ROOT / ".venv" / "machines"


class CannotServe(Exception):
    """A program that it takes is not there; the message says how to get it."""


@dataclass(frozen=True)
class Programs:
    """Found once, before anything is in a network of its own."""

    haproxy: str
    s3: str
    kubectl: Path

    @classmethod
    def found(cls) -> Programs:
        haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if haproxy is None:
            raise CannotServe("haproxy is missing: apt-get install haproxy")
        python = install(ENVIRONMENT, REQUIREMENTS)
        return cls(haproxy, str(python.with_name("nanio")), python.with_name("kubectl"))
