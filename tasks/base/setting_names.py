"""Finds MEDUSAQ_ variables that are not settings: removed ones, and unknown names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values

from common.llama_build import KERNELS_VARIABLE, USE_VARIABLE

ENV_PREFIX = "MEDUSAQ_"
ENV_FILE = Path(".env")

# Variables that are known but not settings.
# Set by users, for the command, the compiler and the engine.
USERS = {"MEDUSAQ_URL", "MEDUSAQ_CONVERTER", KERNELS_VARIABLE}
METRICS_PORTS = "MEDUSAQ_METRICS_PORTS"  # on which the workers of a stack serve their own metrics
OURS = {
    "MEDUSAQ_READY_FD",
    "MEDUSAQ_REFUSAL",
    "MEDUSAQ_TAKES_TURNS",
    METRICS_PORTS,
    USE_VARIABLE,
}  # set by a stack for its services

_LEASE = "it follows from MEDUSAQ_LEASE_MS"
_ENGINE = "the engine chooses it by itself"
REMOVED = {
    "BROKER_URL": "RabbitMQ is not supported any more: the queue is MEDUSAQ_REDIS_URL",
    "HEADS_BACKEND": "heads run on ONNX Runtime",
    "HEARTBEAT_MS": _LEASE,
    "RECONCILE_S": _LEASE,
    "RESEND_AFTER_S": _LEASE,
    "WORKER_TTL_S": _LEASE,
    "WORKER_LOOKAHEAD": "it is a quarter of MEDUSAQ_SLOTS",
    "REDIS_CA": "put ?ssl_ca_certs=FILE into MEDUSAQ_REDIS_URL",
    "REDIS_CERT": "put ?ssl_certfile=FILE into MEDUSAQ_REDIS_URL",
    "REDIS_CERT_KEY": "put ?ssl_keyfile=FILE into MEDUSAQ_REDIS_URL",
    "REDIS_VERIFY": "put ?ssl_cert_reqs=none into MEDUSAQ_REDIS_URL to verify nothing",
    "REDIS_TIMEOUT_S": "put ?socket_timeout=SECONDS into MEDUSAQ_REDIS_URL",
    "METRICS_HOST": "use MEDUSAQ_METRICS_ADDRESS=HOST:PORT",
    "METRICS_PORT": "use MEDUSAQ_METRICS_ADDRESS=HOST:PORT",
    "MODELS": "the register of names is in $XDG_DATA_HOME/medusaq",
    "CHAT_TEMPLATE": "name it with the model: medusaq models add NAME PATH --chat-template TEMPLATE",
    "SERVED": "name each model: medusaq up --model A --model B",
    "MEMORY": "use medusaq up --memory SIZE",
    "TURN_S": "a model's turn is 60 s",
    "LOAD_S": "the time to load follows from the size of the model",
    "SWAP_DRAIN_S": "it is 600 s, or MEDUSAQ_DRAIN_S where that is more",
    "BATCH_WINDOW_MS": _ENGINE,
    "BUSY_CELLS": _ENGINE,
    "KV_TYPE": "it is f16",
    "OWNER_WEIGHTS": "a key has its weight: medusaq keys create --weight",
    "PREFILL_CHUNK": _ENGINE,
    "PREFIX_CACHE_CELLS": "it is 2048, or none with MEDUSAQ_PREFIX_SHARING=false",
    "MAX_FILES": "it is 100000, or what a key says: medusaq keys create --max-files",
    "MAX_OPEN_REQUESTS": "it is 500",
    "MAX_WAIT_S": "it is 60 s, and a client may ask again",
    "ONLINE_RESULT_TTL_S": "it is an hour",
    "RETRY_AFTER_S": "it is 2 s",
    "WEBHOOK_ALLOW_PRIVATE": """name networks: MEDUSAQ_WEBHOOK_ALLOW='["127.0.0.0/8"]'""",
    "WEBHOOK_LOG": "it is 5000",
    "WEBHOOK_RETRIES_S": "the pauses are those of docs/how-to/webhooks.md",
    "WEBHOOK_TIMEOUT_S": "it is 20 s",
}


@dataclass(frozen=True, slots=True)
class UnknownName:
    """place: where it is set. near: the setting with a similar name, None if there is none."""

    name: str
    place: str
    near: str | None

    @property
    def hint(self) -> str:
        return f"did you mean {self.near}?" if self.near else f"remove it from {self.place}"

    @property
    def line(self) -> str:
        return f"{self.name}: is no setting and has no effect: {self.hint}"


def removed_names() -> list[str]:
    """An error line for each variable that is no longer a setting. Raises OSError and UnicodeDecodeError."""
    found = sorted({name.upper().removeprefix(ENV_PREFIX) for _, name in _set_names()} & REMOVED.keys())
    return [f"{ENV_PREFIX}{name}: is no setting any more: {REMOVED[name]}" for name in found]


def unknown_names(fields: Iterable[str]) -> list[UnknownName]:
    """Variables that never were one of these settings. Raises OSError and UnicodeDecodeError."""
    settings = {ENV_PREFIX + field.upper() for field in fields}
    known = {*settings, *USERS, *OURS, *(ENV_PREFIX + name for name in REMOVED)}
    unknown = [(place, name) for place, name in _set_names() if name.upper() not in known]
    return [UnknownName(name, place, _nearest(name.upper(), settings | USERS)) for place, name in unknown]


def env_file() -> dict[str, str]:
    """The variables in .env, as the settings read them. Raises OSError and UnicodeDecodeError."""
    if not ENV_FILE.exists():
        return {}
    ENV_FILE.read_text(encoding="utf-8")  # raises the errors that dotenv_values() suppresses
    return {name: value or "" for name, value in dotenv_values(ENV_FILE).items()}


def _set_names() -> Iterator[tuple[str, str]]:
    """Where each MEDUSAQ_ variable is set, and its name as it is written there."""
    for place, names in (("the environment", os.environ), (".env", env_file())):
        yield from ((place, name) for name in sorted(names) if name.upper().startswith(ENV_PREFIX))


def _nearest(name: str, settings: set[str]) -> str | None:
    """The setting with the most similar name, compared without the common prefix."""
    plain = {setting.removeprefix(ENV_PREFIX): setting for setting in sorted(settings)}
    return next(
        (plain[found] for found in difflib.get_close_matches(name.removeprefix(ENV_PREFIX), plain, 1)), None
    )
