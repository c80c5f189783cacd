"""What the gateway refuses at its start, and its answer to its own faults."""

from __future__ import annotations

import httpx
import pytest

from api.app import check_bind, create_app
from tasks.errors import SettingsError
from tasks.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(settings: Settings, host: str) -> None:
    check_bind(settings.model_copy(update={"host": host}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com", ""])
def test_other_addresses_are_refused_with_the_reason(settings: Settings, host: str) -> None:
    open_settings = settings.model_copy(update={"host": host})
    with pytest.raises(SettingsError, match=r"MEDUSAQ_HOST.*no API keys.*MEDUSAQ_ALLOW_OPEN"):
        create_app(open_settings)
    create_app(open_settings.model_copy(update={"allow_open": True}))


async def _broken() -> None:
    raise RuntimeError("secret detail")


@pytest.mark.anyio
async def test_our_own_fault_is_500_without_details(settings: Settings) -> None:
    app = create_app(settings)
    app.add_api_route("/broken", _broken)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.get("/broken")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
