"""Settings of every process, from MEDUSAQ_* environment variables and an .env file.

Fields ending in _ms or _s say their unit; sizes are bytes or KV cells as named. Values derived from a setting
are properties; values that nobody needs to change are constants where they are used. The descriptions make
docs/reference/settings.md: `python -m tests.project.settings_page --write docs/reference/settings.md`.
"""

import re
import sys
from functools import cache
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as NotJson

from common.addresses import is_loopback
from tasks.base.errors import SettingsError
from tasks.base.redis_tls import RedisOptions
from tasks.base.sentinel_url import SentinelUrl
from tasks.base.setting_names import ENV_PREFIX, removed_names, unknown_names
from tasks.records.webhook import secret_key

BEATS = 10  # heartbeats in a lease: several may be missed before a job counts as lost
RECONCILE_SHARE = 5  # reconciler passes in a lease: a lost job is found within a fifth of one after its end
RESEND_LEASES = 1.5  # far above the time of a publish, so that a resend means a lost message
WORKER_TTL_LEASES = 0.5  # five heartbeats
LEAST_WORKER_TTL_S = 5.0  # a busy machine may hold up a process for seconds
SWAP_DRAIN_S = 600.0  # longer than at shutdown: no service manager kills the worker during a swap of models
# Of batch lines, by one model worker, most of them waiting. One that had enough looks for more after POLL_S
# (tasks/broker/celery_app.py), in which short lines of 8 windows have ended.
WINDOWS_HELD = 16
SLOTS_PER_CLAIM = 4  # slots per claimed job of the lookahead: as many end while a message is fetched


def _file_store(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not url or (separator and not (scheme in ("s3", "file") and rest.strip("/"))):
        raise ValueError("must be a folder or s3://bucket/prefix")
    return url


def _user_and_password(value: SecretStr) -> SecretStr:
    users = [pair.partition(":") for pair in value.get_secret_value().split(",")]
    if not all(name.strip() and password for name, _, password in users):
        raise ValueError("must be user:password")
    return value


def _secrets(given: SecretStr) -> SecretStr:
    for secret in given.get_secret_value().split():
        secret_key(secret)
    return given


def _redis(url: str) -> str:
    SentinelUrl.of(RedisOptions.of(url).address)  # both raise ValueError
    return url


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError("must be HOST:PORT, as 127.0.0.1:9100")
    return text


HostAndPort = Annotated[str, AfterValidator(_host_and_port)] | None


class Settings(BaseSettings):
    """One field per variable; MEDUSAQ_SLOTS sets `slots`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=".env",
        env_ignore_empty=True,  # environments that are handed on may hold empty variables
        extra="ignore",
        frozen=True,
        populate_by_name=True,
    )

    # The store
    redis_url: Annotated[str, AfterValidator(_redis)] = Field(
        "redis://127.0.0.1:6379/0",
        pattern=r"^rediss?(\+sentinel)?://",
        description="Address of Redis, which stores jobs and carries Celery's messages. `rediss://` is TLS; "
        "`redis+sentinel://host:port,host:port/SERVICE` and `rediss+sentinel://` ask "
        "[Sentinels](../how-to/operations.md#redis-sentinel) for the master. Options follow as in redis-py: "
        "`?ssl_ca_certs=FILE` (certificates that vouch for the server; default: the system's), "
        "`ssl_certfile=FILE` and `ssl_keyfile=FILE` (a client certificate), `ssl_cert_reqs=none` (do not "
        "verify the server) and `socket_timeout=SECONDS` (default 3: after that the gateway answers 503).",
    )
    key_prefix: str = Field(
        "medusaq:",
        min_length=1,
        description="Prefix of every key in Redis, Celery's included. Change it where stacks share a server.",
    )
    files: Annotated[str, AfterValidator(_file_store)] = Field(
        ".medusaq/files",
        description="Where uploaded files and results are stored: a folder, or `s3://bucket/prefix` with the "
        "usual AWS variables. Gateways and io workers must use the same.",
    )

    # Addresses and access
    host: str = Field(
        "127.0.0.1",
        description="Address on which the gateway and Flower listen. Beyond loopback an API key must exist "
        "(or `MEDUSAQ_ALLOW_OPEN`).",
    )
    port: int = Field(7860, ge=0, le=65535, description="Port of the gateway.")
    flower_port: int = Field(5555, ge=0, le=65535, description="Port of Flower.")
    flower_basic_auth: Annotated[SecretStr, AfterValidator(_user_and_password)] | None = Field(
        None,
        validation_alias=AliasChoices(f"{ENV_PREFIX}FLOWER_BASIC_AUTH", "FLOWER_BASIC_AUTH"),
        description="`user:password` of Flower's pages, several separated by commas. Flower's own variable "
        "`FLOWER_BASIC_AUTH` does the same.",
    )
    publish_address: str | None = Field(
        None,
        description="Address at which others reach the gateway and Flower, where that is not `MEDUSAQ_HOST`: "
        "set it in a container, to the address on which its port is published.",
    )
    allow_open: bool = Field(
        False, description="Serve everyone without API keys. Only behind a proxy that checks who calls."
    )
    api_key: SecretStr | None = Field(None, description="API key that `medusaq` commands send.")
    metrics_address: HostAndPort = Field(
        None,
        description="`HOST:PORT` at which a worker serves [its own metrics]"
        "(../how-to/observability.md#a-worker-by-itself), which gateways show anyway. Without it nowhere.",
    )

    # The model and its engine
    model: str | None = Field(
        None,
        description="Model of a worker: path of a GGUF, or a [name](../how-to/models.md). Without it the "
        "packaged SmolLM2-135M-Instruct.",
    )
    heads: str | None = Field(
        None,
        description="[Draft heads](../explanation/heads.md) for the model, a file or folder. Without it "
        "those registered with the model's name, or those of the package if they are for this model.",
    )
    weights: str = Field(
        "auto",
        pattern=r"^(auto|as_shipped|bf16|for_this_machine)$",
        description="Number format in which weights are computed: `as_shipped` in the file, `bf16` "
        "(unpacked), `auto` (the faster of both, measured; a model that takes more than 2 GiB in BF16 "
        "stays as in the file), or `for_this_machine`: what "
        "[`medusaq compile`](../how-to/compile.md#for-this-machine) chose.",
    )
    slots: int = Field(
        16,
        ge=1,
        le=64,
        description="Requests decoded together. On two CPU cores more gain little "
        "([lanes](benchmarks.md#lanes)); raise it on a GPU.",
    )
    kv_cells: int = Field(
        8192,
        ge=64,
        description="Tokens of the longest request, prompt and output: the size of the KV cache for long "
        "requests. Shorter ones have lanes beside it, which grow with it. Raise it for long prompts, as far "
        "as memory allows ([memory](../how-to/memory.md#lanes)).",
    )
    threads: int = Field(
        0,
        ge=0,
        description="Threads that compute the model; 0 is every core. Set it where workers share a machine.",
    )
    gpu_layers: int = Field(
        -1, ge=-1, description="Layers on a GPU, where llama.cpp was built for one; -1 is all of them."
    )
    speculation: bool = Field(
        True, description="Draft tokens wherever that is measured to pay; results stay the same."
    )
    batch_invariant: bool = Field(
        False,
        description="Bit-identical results whatever shares the batch, on a processor, at the price of speed. "
        "A model for which llama.cpp's kernels cannot give them is refused.",
    )
    prefix_sharing: bool = Field(
        True,
        description="Compute common beginnings of prompts once, also those of ended requests. Turn it off "
        "where a key must not learn from response times what others send.",
    )
    engine_factory: str = Field(
        "engine:load", pattern=r"^[\w.]+:\w+$", description="`module:function`; for development."
    )

    # The life of a job
    lease_ms: int = Field(
        10_000,
        ge=200,
        description="A worker that is silent for so long (ms) loses its jobs to others. Its heartbeat (a "
        "tenth), the silence after which one without a connection is lost (three heartbeats, at least 1 s), "
        "the looks for lost jobs (a fifth), the wait before a lost message is sent again (1.5 times as long) "
        "and its time in the list of workers (half, at least 5 s) follow from it. Raise it where "
        "machines are overcommitted or connections to Redis unreliable.",
    )
    max_attempts: int = Field(
        3, ge=1, description="Attempts at a job whose worker is lost; then it fails with `worker_lost`."
    )
    drain_s: float = Field(
        20.0,
        ge=0,
        description="Time that running jobs have to finish after SIGTERM (s); the rest are handed back. "
        "Raise it for long answers, together with the time after which the service manager kills. "
        "A model of several that makes room for another has so long too, and 600 s at least.",
    )
    result_ttl_s: int = Field(
        604_800, ge=1, description="Time for which ended jobs, and records of ended batches, are kept (s)."
    )
    default_max_tokens: int = Field(256, ge=1, description="`max_tokens` of requests that name none.")
    default_model: str | None = Field(
        None,
        min_length=1,
        description="Model of requests that name none. Without it the only one that is served.",
    )
    model_aliases: dict[str, str] = Field(
        {},
        description='Further names of models, as JSON: `{"gpt-4o-mini": "NAME"}`; with `""` the model of '
        "requests that name none. For requests and files of batches that were made for another server.",
    )
    online_timeout_s: float = Field(
        600.0,
        gt=0,
        description="An online request that takes longer (s) is cancelled and answered with 504. The default "
        "is what OpenAI's client waits.",
    )

    # Limits
    max_body_bytes: int = Field(
        4_194_304,
        ge=1024,
        description="Largest request body (bytes); a larger one is refused with 413, and so is one whose "
        "answers and prompts together come to 4 times that.",
    )
    max_batch_lines: int = Field(
        50_000, ge=1, description="Most lines of a batch; one of more fails with `too_many_tasks`."
    )
    max_file_bytes: int = Field(
        200_000_000, ge=1, description="Largest upload (bytes); a larger one is refused with 413."
    )
    max_files_bytes: int = Field(
        100_000_000_000,
        ge=1,
        description="Bytes of all files of one key, or of all callers without keys, unless the key has its "
        "own (`medusaq keys create --max-files-bytes`): uploads under way, results, and a copy of its input "
        "for each live batch among them. More uploads are refused with 413; results never are.",
    )
    max_stored_bytes: int = Field(
        500_000_000,
        ge=1,
        description="Bytes in Redis of one key, or of all callers without keys, unless the key has its own "
        "(`--max-stored-bytes`): jobs with their results, batches and webhooks, live and ended. More work is "
        "refused with 429.",
    )
    max_queued: int = Field(
        100_000, ge=1, description="Queued jobs of all keys, which Redis must hold; then 429."
    )

    # Webhooks
    webhook_secrets: Annotated[SecretStr, AfterValidator(_secrets)] = Field(
        SecretStr(""),
        description="Secrets that sign the [webhooks](../how-to/webhooks.md) of everybody, separated by "
        "spaces, the current one first. Without them each key has one of its own, in Redis.",
    )
    webhook_allow: list[IPv4Network | IPv6Network] = Field(
        [],
        description='Networks that are not public and that webhooks may reach, as JSON: `["127.0.0.0/8"]` '
        "for receivers on this machine. The ports of the stack itself are never reached, "
        "apart from those of Redis servers that Sentinels name.",
    )
    webhook_deny: list[IPv4Network | IPv6Network] = Field(
        [],
        description="Networks that webhooks never reach, whatever allows them, as JSON: public addresses of "
        "your own.",
    )

    # Logs
    log_level: str = Field(
        "INFO",
        pattern=r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$",
        description="Least severity that every process logs.",
    )
    log_format: str = Field(
        "text",
        pattern=r"^(text|json)$",
        description="`text`, or `json` for a JSON object a line, with the ids of jobs and batches as fields.",
    )

    @property
    def reached_at(self) -> str:
        """The address at which others reach the gateway and Flower."""
        return self.publish_address or self.host

    @property
    def metrics_host(self) -> str:
        return (self.metrics_address or "").rpartition(":")[0].strip("[]")

    @property
    def metrics_port(self) -> int:
        """0: the metrics are not served."""
        return int((self.metrics_address or "").rpartition(":")[2] or 0)

    @property
    def jobs_at_once(self) -> int:
        """Of a model worker, beside windows: those in the slots, and the lookahead."""
        return self.slots + lookahead(self.slots)

    @property
    def concurrency(self) -> int:
        """Celery threads of a model worker."""
        return self.jobs_at_once + WINDOWS_HELD

    @property
    def heartbeat_s(self) -> float:
        """Interval between two renewals of a worker's leases."""
        return self.lease_ms / 1000 / BEATS

    @property
    def reconcile_s(self) -> float:
        """Interval between two passes of the reconciler, which finds expired leases and lost messages."""
        return self.lease_ms / 1000 / RECONCILE_SHARE

    @property
    def resend_after_s(self) -> float:
        """Age at which the message of a job that is still queued counts as lost."""
        return self.lease_ms / 1000 * RESEND_LEASES

    @property
    def worker_ttl_s(self) -> float:
        """Time without a heartbeat after which a worker leaves the registry."""
        return max(LEAST_WORKER_TTL_S, self.lease_ms / 1000 * WORKER_TTL_LEASES)

    @property
    def swap_drain_s(self) -> float:
        """Time that the running jobs of a model have when it makes room for another one."""
        return max(self.drain_s, SWAP_DRAIN_S)

    @property
    def webhook_keys(self) -> tuple[str, ...]:
        """Secrets that sign for every owner, the current one first."""
        return tuple(self.webhook_secrets.get_secret_value().split())


def lookahead(slots: int) -> int:
    """Jobs that a model worker claims beyond its slots, so that a free slot does not wait for a message.

    A small number, because these jobs wait here while another worker may be idle.
    """
    return slots // SLOTS_PER_CLAIM


def redacted(url: str) -> str:
    """The URL without passwords and query. It may have several hosts, which urllib's parser rejects."""
    return re.sub("//([^/@]*?):[^/]*@", r"//\1:***@", url.partition("?")[0])


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment with overrides; raises SettingsError with one line."""
    troubles = []
    try:
        troubles += removed_names()
        settings = Settings(**overrides)  # type: ignore[arg-type]  # pydantic checks the values
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f".env: cannot be read: {error}") from None
    except ValidationError as error:
        troubles += [_line(e["loc"], e["msg"]) for e in error.errors()]
    except NotJson as error:
        field = re.search(r'field "(\w+)"', str(error))
        troubles.append(_line((field[1],) if field else (), "must be JSON"))
    if troubles:
        raise SettingsError("; ".join(troubles))
    return settings


def _line(loc: tuple[int | str, ...], message: str) -> str:
    field = str(loc[0]) if loc else "settings"
    return f"{ENV_PREFIX}{field.upper().removeprefix(ENV_PREFIX)}: {message}"


@cache
def get_settings() -> Settings:
    """The settings of this process, read once; unknown names are reported on stderr."""
    settings = load_settings()
    host = settings.metrics_host
    if settings.metrics_address and not (is_loopback(host) or settings.allow_open):
        raise SettingsError(
            f"{ENV_PREFIX}METRICS_ADDRESS: {host} is reachable from other machines, and a "
            f"worker's metrics ask for no key; use 127.0.0.1, or set {ENV_PREFIX}ALLOW_OPEN=1 where only "
            "Prometheus gets there"
        )
    for name in unknown_names(Settings.model_fields):
        print(f"warning: {name.line}", file=sys.stderr, flush=True)
    return settings
