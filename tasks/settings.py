"""Settings of every process, from MEDUSAQ_* environment variables and an .env file.

Fields ending in _ms or _s say their unit; sizes are bytes or KV cells as named.
"""

import ipaddress
import re
from functools import cache
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    ValidationInfo,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as NotJson

from tasks.errors import SettingsError
from tasks.sentinel import SentinelUrl
from tasks.webhook import secret_key

ENV_PREFIX = "MEDUSAQ_"


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
    SentinelUrl.of(url)  # raises for one that is not whole
    return url


def _for_tls(path: Path | None, info: ValidationInfo) -> Path | None:
    if path is not None and info.data.get("redis_url", "").startswith("redis://"):
        raise ValueError(f"is for rediss://, and {ENV_PREFIX}REDIS_URL is a redis:// address, without TLS")
    return path


# "" is none, for those who hand an environment on.
TlsFile = Annotated[FilePath | None, BeforeValidator(lambda path: path or None), AfterValidator(_for_tls)]
Pause = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """One field per variable; MEDUSAQ_SLOTS sets `slots`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    # where things are
    files: Annotated[str, AfterValidator(_file_store)] = ".medusaq/files"  # a folder or s3://bucket/prefix
    redis_url: Annotated[str, AfterValidator(_redis)] = Field(
        "redis://127.0.0.1:6379/0", pattern=r"^rediss?(\+sentinel)?://"
    )
    redis_ca: TlsFile = None  # certificates that vouch for Redis; None is those of the system
    redis_cert: TlsFile = None  # ours, for a Redis that asks for one
    redis_cert_key: TlsFile = None
    redis_verify: bool = True  # that the certificate of Redis is good, and for its host
    key_prefix: str = Field("medusaq:", min_length=1)  # of all keys, Celery's too: stacks can share a server
    host: str = "127.0.0.1"
    port: int = Field(7860, ge=0, le=65535)
    flower_port: int = Field(5555, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(0, ge=0, le=65534)  # of a worker's own figures; 0 is none
    publish_address: str | None = None  # from where others reach it, where that is not `host`: of a container
    allow_open: bool = False  # serve anyone without keys, behind a proxy that checks who calls
    flower_basic_auth: Annotated[SecretStr, AfterValidator(_user_and_password)] | None = Field(
        None, validation_alias=AliasChoices(f"{ENV_PREFIX}FLOWER_BASIC_AUTH", "FLOWER_BASIC_AUTH")
    )
    api_key: SecretStr | None = None  # that commands send

    # the engine; the worker hands these on
    model: str | None = None  # path of a GGUF, or a name; None is the packaged default model
    models: Path | None = None  # folder of the register of names; None is that of this user
    weights: str = Field("auto", pattern=r"^(auto|as_shipped|bf16|for_this_machine)$")
    slots: int = Field(16, ge=1, le=64)
    kv_cells: int = Field(8192, ge=64)
    batch_window_ms: float = Field(10.0, ge=0, le=1000)
    prefill_chunk: int = Field(0, ge=0)  # 0 lets the engine choose
    prefix_sharing: bool = True
    prefix_cache_cells: int = Field(1024, ge=0)
    batch_invariant: bool = False
    kv_type: str = Field("f16", pattern=r"^(f16|f32)$")
    threads: int = Field(0, ge=0)  # 0 is every core
    gpu_layers: int = Field(-1, ge=-1)  # -1 is all of them
    busy_cells: int = Field(0, ge=0)  # 0 lets the engine choose
    speculation: bool = True  # draft tokens where that pays; results stay the same
    heads: str | None = None  # Medusa heads; None is those that come with the package for this model
    served: list[str] = Field([])  # models of `medusaq up`, by name or path, where there are several
    memory: str | None = None  # for all of them together, as 6GB; None is what is free, less a tenth
    turn_s: float = Field(60.0, gt=0)  # that a model has while others wait for its memory
    load_s: float = Field(900.0, gt=0)  # that one of several may take to load: longer, and it is given up
    swap_drain_s: float | None = Field(None, ge=0)  # SIGINT lets running jobs finish so long; None is drain_s
    chat_template: str | None = None  # a known one's name, or a file; None is the model's own
    engine_factory: str = Field("engine:load", pattern=r"^[\w.]+:\w+$")

    # the life of a job
    worker_lookahead: int = Field(4, ge=0, le=64)  # jobs claimed beyond the slots: a free slot never waits
    lease_ms: int = Field(10_000, ge=200)  # ten missed heartbeats and the job is somebody else's
    heartbeat_ms: int = Field(1000, ge=50)
    reconcile_s: float = Field(2.0, gt=0)
    max_attempts: int = Field(3, ge=1)  # a prompt that kills workers gets no further
    resend_after_s: float = Field(15.0, gt=0)  # far above a publish, so that a resend means a lost message
    drain_s: float = Field(20.0, ge=0)  # SIGTERM lets running jobs finish this long
    worker_ttl_s: float = Field(5.0, gt=0)  # a silent worker leaves the registry after this
    result_ttl_s: int = Field(604_800, ge=1)  # a week

    # batches
    max_batch_lines: int = Field(50_000, ge=1)

    # webhooks
    webhook_secrets: Annotated[SecretStr, AfterValidator(_secrets)] = SecretStr("")  # "": each owner has one
    webhook_retries_s: list[Pause] = Field([5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400])
    webhook_timeout_s: float = Field(20.0, ge=0.1, le=60)  # of an attempt, from the name to the answer
    webhook_allow_private: bool = False
    webhook_allow: list[IPv4Network | IPv6Network] = Field([])  # networks that are no public ones
    webhook_deny: list[IPv4Network | IPv6Network] = Field([])  # whatever else allows them
    webhook_log: int = Field(5000, ge=1)  # ended deliveries of each status and owner that are kept

    # the gateway
    max_body_bytes: int = Field(4_194_304, ge=1024)
    max_file_bytes: int = Field(200_000_000, ge=1)  # of one upload; the limit of the OpenAI API
    max_files: int = Field(100_000, ge=1)  # of one owner, unless its key says another number
    max_files_bytes: int = Field(100_000_000_000, ge=1)  # likewise: five hundred of the largest
    max_stored_bytes: int = Field(500_000_000, ge=1)  # of Redis, likewise: the queue full of short prompts
    max_queued: int = Field(100_000, ge=1)  # jobs of all: Redis must hold them
    max_open_requests: int = Field(500, ge=1)  # of one key, or all without one, at a gateway; streams too
    max_wait_s: int = Field(60, ge=0)
    redis_timeout_s: float = Field(3.0, gt=0)
    retry_after_s: int = Field(2, ge=1)
    default_max_tokens: int = Field(256, ge=1)
    default_model: str | None = Field(None, min_length=1)  # of requests that name none
    online_timeout_s: float = Field(600.0, gt=0)  # what OpenAI's own client waits by default
    online_result_ttl_s: int = Field(3600, ge=1)  # the answer is with the client; this is for looking back

    log_level: str = Field("INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$")
    log_format: str = Field("text", pattern=r"^(text|json)$")

    @property
    def reached_at(self) -> str:
        """The address at which others reach the gateway and Flower."""
        return self.publish_address or self.host

    @property
    def concurrency(self) -> int:
        """Celery threads of a model worker: the slots plus the lookahead."""
        return self.slots + self.worker_lookahead

    @property
    def webhook_lease_s(self) -> float:
        """How long a sender has a delivery to itself: longer than an attempt."""
        return 2 * self.webhook_timeout_s

    @property
    def webhook_keys(self) -> tuple[str, ...]:
        """Secrets that sign for every owner, the current one first."""
        return tuple(self.webhook_secrets.get_secret_value().split())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def redacted(url: str) -> str:
    """The address without passwords, also where it has several hosts, which the usual parsers refuse."""
    return re.sub("//([^/@]*?):[^/]*@", r"//\1:***@", url.partition("?")[0])


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment with overrides; raises SettingsError with one line."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]  # pydantic checks the values
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f".env: cannot be read: {error}") from None
    except ValidationError as error:
        raise SettingsError("; ".join(_line(e["loc"], e["msg"]) for e in error.errors())) from None
    except NotJson as error:
        field = re.search(r'field "(\w+)"', str(error))
        raise SettingsError(_line((field[1],) if field else (), "must be JSON")) from None


def _line(loc: tuple[int | str, ...], message: str) -> str:
    field = str(loc[0]) if loc else "settings"
    return f"{ENV_PREFIX}{field.upper().removeprefix(ENV_PREFIX)}: {message}"


@cache
def get_settings() -> Settings:
    """The settings of this process, read once."""
    settings = load_settings()
    if settings.heartbeat_ms * 2 > settings.lease_ms:
        raise SettingsError(f"{ENV_PREFIX}HEARTBEAT_MS: must be at most half of {ENV_PREFIX}LEASE_MS")
    if settings.metrics_port and not (is_loopback(settings.metrics_host) or settings.allow_open):
        raise SettingsError(
            f"{ENV_PREFIX}METRICS_HOST: {settings.metrics_host} is reachable from other machines, and a "
            f"worker's figures ask for no key; use 127.0.0.1, or set {ENV_PREFIX}ALLOW_OPEN=1 where only "
            "Prometheus gets there"
        )
    return settings
