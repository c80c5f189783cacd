"""Servers with other limits than those of production: short times, and few connections."""

from __future__ import annotations

from dataclasses import replace

from api.http.bounded_protocol import BoundedHttp
from api.http.connection_limits import Limits

SOON_S = 1.0  # a busy machine must still send what is sent at once


class HastyHttp(BoundedHttp):
    limits = replace(
        Limits(), head_s=SOON_S, transfer_s=SOON_S, transfer_bytes=1024, discard_s=SOON_S, linger_s=SOON_S
    )


class FewHttp(BoundedHttp):
    limits = replace(Limits(), connections=10)
