"""The system of a Compose file, as a project beside whatever else runs in this Docker Engine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medusaq import Client
from tests.containers.bases import REDIS, Bases
from tests.containers.docker import OURS, DockerFailed, docker, inspect
from tests.support.servers import free_port

TARGETS = {"gateway": "gateway", "io": "gateway", "worker": "worker", "flower": "flower"}
HEALTHY_S = 600.0  # the engine loads a model, on a machine that may be busy
BUILD_S = 7200.0
LOOK_S = 0.25
TAIL = "15"
# The processor's seconds of the check that Docker runs in a container, with all that it starts.
CHECK_TIME = """
import resource, subprocess, sys
done = subprocess.run(["python", "/opt/health.py", sys.argv[1]])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, used.ru_utime + used.ru_stime)
"""


# Of a container, with its health checks: microseconds, or nanoseconds under cgroup v1.
USED = "cat /sys/fs/cgroup/cpu.stat 2>/dev/null || cat /sys/fs/cgroup/cpuacct/cpuacct.usage"


class NotHealthy(Exception):
    """Which services, and the end of their logs."""


@dataclass
class System:
    """code: a checkout, whose Compose file it is. tag: of its images. contexts: see `docker build`."""

    code: Path
    tag: str
    bases: Bases
    work: Path
    contexts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("GATEWAY", "FLOWER", "PROMETHEUS", "GRAFANA")}
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['GATEWAY']}"

    @contextmanager
    def client(self) -> Iterator[Client]:
        with Client(self.url) as client:
            yield client

    def compose(self, *arguments: str, timeout_s: float | None = None) -> str:
        """Raises DockerFailed."""
        override = self.work / f"{self.tag}.json"
        override.write_text(json.dumps(self._override()), encoding="utf-8")
        files = ("-f", str(self.code / "docker-compose.yml"), "-f", str(override))
        ports = {f"{name}_PORT": str(port) for name, port in self.ports.items()}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MEDUSAQ_")}
        env = kept | {"FLOWER_BASIC_AUTH": "me:secret"} | ports | self.settings
        # Its own .env is nobody's business here.
        options = ("-p", OURS, "--project-directory", str(self.code), "--env-file", os.devnull)
        return docker("compose", *options, *files, *arguments, env=env, timeout_s=timeout_s)

    def _override(self) -> dict[str, Any]:
        images = self.bases.images
        contexts = {
            name: f"docker-image://{image}"
            for name, image in (*images.items(), *self.contexts.items())
            if name not in (image, REDIS)
        }
        ours = {
            name: {"image": self.image(target), "build": {"additional_contexts": contexts}}
            for name, target in TARGETS.items()
        }
        return {"services": {"redis": {"image": images[REDIS]}, **ours}}

    def image(self, target: str) -> str:
        return f"{OURS}/{target}:{self.tag}"

    def build(self) -> None:
        for target in dict.fromkeys(TARGETS.values()):
            began = time.monotonic()
            self.compose("build", target, timeout_s=BUILD_S)
            print(f"built {self.image(target)} in {time.monotonic() - began:.0f} s", flush=True)

    def sizes(self) -> dict[str, int]:
        """Bytes of the image of each service, the stand-in or official one below included."""
        names = {name: self.image(target) for name, target in TARGETS.items()}
        names["redis"] = self.bases.images[REDIS]
        return {name: inspect(image)[0]["Size"] for name, image in names.items()}

    def up(self, *arguments: str) -> dict[str, float]:
        """Start it; service -> seconds until Docker calls it healthy, the last one of several containers."""
        began = time.monotonic()
        self.compose("up", "-d", "--no-build", *arguments, timeout_s=HEALTHY_S)
        return self.wait_healthy(began)

    def wait_healthy(self, began: float) -> dict[str, float]:
        """Service -> seconds since began. Raises NotHealthy."""
        healthy: dict[str, float] = {}
        services = {*TARGETS, "redis"}
        while missing := services - healthy.keys():
            states: dict[str, list[str]] = {}
            for container in inspect(*self.containers()):
                health = container["State"].get("Health", {}).get("Status", "none")
                running = container["State"]["Running"] and not container["State"]["Restarting"]
                states.setdefault(_service(container), []).append(health if running else "down")
            now = time.monotonic() - began
            for name in missing:
                if set(states.get(name, ["down"])) == {"healthy"}:
                    healthy[name] = now
            if now > HEALTHY_S:
                raise NotHealthy(f"{', '.join(missing)}: not healthy\n{self.tails()}")
            time.sleep(LOOK_S)
        return healthy

    def down(self, *arguments: str) -> None:
        with_all = ("--profile", "monitoring")
        self.compose(*with_all, "down", "--remove-orphans", *arguments, timeout_s=HEALTHY_S)

    def containers(self, service: str | None = None) -> list[str]:
        """Ids, also of those that have ended."""
        asked = ["--filter", f"label=com.docker.compose.project={OURS}"]
        asked += ["--filter", f"label=com.docker.compose.service={service}"] if service else []
        return docker("ps", "-aq", "--no-trunc", *asked).split()

    def kill(self, container: str) -> float:
        """End all its processes with SIGKILL, as a crash does; seconds until it is healthy again.

        `docker kill` would not do: Docker starts again what crashed, and not what was killed by it.
        """
        before = inspect(container)[0]["State"]["StartedAt"]
        began = time.monotonic()
        with suppress(DockerFailed):  # it is killed as well
            docker("exec", container, "sh", "-c", "kill -9 -1", timeout_s=HEALTHY_S)
        self.wait(lambda: inspect(container)[0]["State"]["StartedAt"] != before, "it was not started again")
        return max(self.wait_healthy(began).values())

    def wait(self, condition: Callable[[], bool], otherwise: str, limit_s: float = HEALTHY_S) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                raise NotHealthy(f"{otherwise}\n{self.tails()}")
            time.sleep(LOOK_S)

    def check_seconds(self, service: str) -> float:
        """The processor's seconds of one health check."""
        [container, *_] = self.containers(service)
        answered = docker("exec", container, "python", "-c", CHECK_TIME, service)
        code, used = answered.split()[-2:]
        if code != "0":
            raise NotHealthy(f"{service}: its check ended with {code}\n{self.tails()}")
        return float(used)

    def used_seconds(self, service: str) -> float:
        """The processor's seconds of its containers since they began, health checks included."""
        return sum(
            _seconds(docker("exec", container, "sh", "-c", USED)) for container in self.containers(service)
        )

    def logs(self, service: str) -> str:
        return self.compose("logs", "--no-color", "--no-log-prefix", service)

    def tails(self) -> str:
        """The end of each log, or why there is none."""
        try:
            return self.compose("logs", "--no-color", "--tail", TAIL)
        except DockerFailed as error:
            return str(error)


def _seconds(used: str) -> float:
    """used: what USED prints."""
    words = used.split()
    return int(words[1]) / 1e6 if words[0] == "usage_usec" else int(words[0]) / 1e9


def _service(container: dict[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])
