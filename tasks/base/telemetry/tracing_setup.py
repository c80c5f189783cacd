"""Sets up tracing by the OTEL_* variables. OpenTelemetry is imported only if they enable it."""

from __future__ import annotations

import logging
import os

from tasks.base.telemetry.tracing import UNTRACED, Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
log = logging.getLogger(__name__)


def configured() -> bool:
    """Whether an OTLP endpoint is set and tracing is not disabled."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    return any(os.environ.get(name) for name in ENDPOINTS) and not off and not none


def begin(service: str) -> Tracing:
    """The tracing of this process. Errors of the setup are only logged: the process then runs untraced."""
    if not configured():
        return UNTRACED
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning("no traces are sent: the protocol is %s, and only http/protobuf is supported", protocol)
        return UNTRACED
    try:
        from tasks.base.telemetry.otel_tracing import Traced

        return Traced(service)
    except ImportError as error:
        log.warning("no traces are sent: %s is missing: pip install 'medusaq[tracing]'", error.name)
    except Exception as error:  # OpenTelemetry's checks raise many types
        log.warning("no traces are sent: OTEL_* is refused: %s", str(error).partition("\n")[0])
    return UNTRACED
