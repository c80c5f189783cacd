"""Child process specs of a local stack's services: commands, environment, and metrics ports."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cli.processes.supervisor import ChildSpec
from tasks.base.setting_names import METRICS_PORTS

WORKER = "worker"  # name of the model worker
STOP_MARGIN_S = 10.0  # above a worker's own drain time before it is killed
STOP_TIMEOUT_S = 6.0  # of the gateway (3 s of grace), Flower and the rest
FLOWER_SAVE_MS = 5000  # between two times that Flower saves what it has seen


@dataclass(frozen=True)
class ChildSpecs:
    """env: variables of all services. metrics_address: of the first service; others use the next ports.

    drain_s: time that a worker has to finish its running jobs.
    """

    env: Mapping[str, str]
    logs: Path
    metrics_address: str | None
    drain_s: float

    def service(self, name: str, *arguments: str) -> ChildSpec:
        # -P: a folder of the current directory must not pass for one of our packages
        argv = [sys.executable, "-P", "-m", "cli", name, *arguments]
        own = {**self.env, "MEDUSAQ_METRICS_ADDRESS": self._metrics_address(name)}
        return ChildSpec(name, argv, self.logs / f"{name}.log", own, 1, STOP_TIMEOUT_S)

    def worker(self, env: Mapping[str, str], index: int = 0) -> ChildSpec:
        """A model worker with further variables. index: among several workers."""
        spec = self.service(WORKER)
        own = {"MEDUSAQ_METRICS_ADDRESS": self._metrics_address(WORKER, index)}
        return replace(
            spec,
            env={**spec.env, **own, **env},
            stop_timeout_s=self.drain_s + STOP_MARGIN_S,
            model_exit=True,
        )

    def _metrics_address(self, service: str, index: int = 0) -> str:
        """The metrics address of a service, empty if it has none."""
        if self.metrics_address is None or service not in (WORKER, "io"):
            return ""
        host, _, first = self.metrics_address.rpartition(":")
        return f"{host}:{int(first) + (1 if service == 'io' else index + (index > 0))}"


def metrics_ports(metrics_address: str | None, workers: int) -> dict[str, str]:
    """The variable that tells services all ports of metrics. workers: that serve models."""
    if metrics_address is None:
        return {}
    first = int(metrics_address.rpartition(":")[2])
    return {METRICS_PORTS: ",".join(str(first + index) for index in range(workers + 1))}


def flower_keeps(db: Path) -> dict[str, str]:
    """Variables that make Flower persist its state in this file."""
    return {
        "FLOWER_PERSISTENT": "True",
        "FLOWER_DB": str(db),
        "FLOWER_STATE_SAVE_INTERVAL": str(FLOWER_SAVE_MS),
    }
