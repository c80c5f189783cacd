"""How Redis is reached, by whichever library: what the URL cannot say of TLS."""

from __future__ import annotations

from typing import Any

from tasks.settings import Settings


def tls_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of redis-py, and of Celery's broker_use_ssl; none unless the URL begins with rediss.

    JSON alone: workers report their settings.
    """
    if not settings.redis_url.startswith("rediss"):
        return {}
    given = {
        "ssl_ca_certs": settings.redis_ca,
        "ssl_certfile": settings.redis_cert,
        "ssl_keyfile": settings.redis_cert_key,
    }
    return {
        "ssl_cert_reqs": "required" if settings.redis_verify else "none",
        "ssl_check_hostname": settings.redis_verify,
        **{name: str(path) for name, path in given.items() if path is not None},
    }
