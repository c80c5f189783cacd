"""Signatures of webhooks, verified by the library that receivers use, and the settings they come from."""

from __future__ import annotations

import base64
import json
import time

import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from tasks.base.errors import SettingsError
from tasks.base.settings import load_settings
from tasks.records.webhook import LEAST_SECRET, MOST_SECRET, SECRET_PREFIX, new_secret, secret_key, signed

BODY = json.dumps({"id": "evt_1", "text": "é\u2028😀"}, ensure_ascii=False).encode()


def test_the_library_of_receivers_verifies_what_we_sign() -> None:
    current, previous = new_secret(), new_secret()
    headers = signed("evt_1", int(time.time()), BODY, [current, previous])
    for secret in (current, previous):
        assert Verifier(secret).verify(BODY, headers) == json.loads(BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    for wrong_body, wrong_headers, secret in (
        (BODY + b" ", headers, current),
        (BODY, headers | {"webhook-id": "evt_2"}, current),
        (BODY, headers | {"webhook-timestamp": str(int(time.time()) + 1)}, current),
        (BODY, headers, new_secret()),
    ):
        with pytest.raises(WebhookVerificationError):
            Verifier(secret).verify(wrong_body, wrong_headers)


def test_secrets_are_what_the_specification_says() -> None:
    assert new_secret() != new_secret()
    assert len(secret_key(new_secret())) == 32

    def of(size: int) -> str:
        return SECRET_PREFIX + base64.b64encode(b"x" * size).decode()

    for size in (LEAST_SECRET, MOST_SECRET):
        assert secret_key(of(size)) == b"x" * size
    for bad in ("", "whsec_", "whsec_????", of(LEAST_SECRET - 1), of(MOST_SECRET + 1), "a" * 44):
        with pytest.raises(ValueError, match="must be whsec_ and 24 to 64 bytes in base64"):
            secret_key(bad)


def test_secrets_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().webhook_keys == ()
    both = new_secret(), new_secret()
    monkeypatch.setenv("MEDUSAQ_WEBHOOK_SECRETS", " ".join(both))
    settings = load_settings()
    assert settings.webhook_keys == both
    for shown in (repr(settings), str(settings.model_dump())):
        assert both[0] not in shown
    monkeypatch.setenv("MEDUSAQ_WEBHOOK_SECRETS", f"{both[0]} verysecret")
    with pytest.raises(SettingsError, match=r"^MEDUSAQ_WEBHOOK_SECRETS: ") as caught:
        load_settings()
    assert "verysecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETRIES_S", "[-1]"),
        ("RETRIES_S", '["inf"]'),
        ("TIMEOUT_S", "0"),
        ("TIMEOUT_S", "61"),
        ("ALLOW", '["10.0.0.1/8"]'),
        ("ALLOW", '["example.com"]'),
        ("ALLOW", "10.0.0.0/8"),
        ("RETRIES_S", "5 300"),
        ("LOG", "0"),
    ],
)
def test_bad_settings(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"MEDUSAQ_WEBHOOK_{name}", value)
    with pytest.raises(SettingsError, match=f"^MEDUSAQ_WEBHOOK_{name}: "):
        load_settings()
