"""The services of a local stack as child processes: commands, variables, and the ports of their figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cli.processes.supervisor import ChildSpec

STOP_MARGIN_S = 10.0  # above a worker's own drain time before it is killed
STOP_TIMEOUT_S = 6.0  # of the gateway (3 s of grace), Flower and the rest
FLOWER_SAVE_MS = 5000  # between two times that Flower saves what it has seen


@dataclass(frozen=True)
class ChildSpecs:
    """env: variables of all of them. metrics_address: of the first, the others have the ports after it.

    drain_s: that a worker has to end what it runs.
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
        """A model worker with these variables more. place: among several."""
        spec = self.service("worker")
        own = {"MEDUSAQ_METRICS_ADDRESS": self._metrics_address("worker", index)}
        return replace(
            spec,
            env={**spec.env, **own, **env},
            stop_timeout_s=self.drain_s + STOP_MARGIN_S,
            model_exit=True,
        )

    def _metrics_address(self, service: str, index: int = 0) -> str:
        """Empty where it has none."""
        if self.metrics_address is None or service not in ("worker", "io"):
            return ""
        host, _, first = self.metrics_address.rpartition(":")
        return f"{host}:{int(first) + (1 if service == 'io' else index + (index > 0))}"


def flower_keeps(db: Path) -> dict[str, str]:
    """Variables that have Flower keep what it has seen in this file, but for the last seconds of a kill."""
    return {
        "FLOWER_PERSISTENT": "True",
        "FLOWER_DB": str(db),
        "FLOWER_STATE_SAVE_INTERVAL": str(FLOWER_SAVE_MS),
    }
