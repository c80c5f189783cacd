"""What the gateway refuses at its start, and its answer to its own faults."""

from __future__ import annotations

import httpx
import pytest

from api.app import create_app
from tasks.base.errors import SettingsError
from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore, check_bind
from tasks.store.jobs import JobStore
from tests.support.servers import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(settings: Settings, host: str) -> None:
    check_bind(settings.model_copy(update={"host": host}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com", ""])
def test_other_addresses_are_refused_with_the_reason(settings: Settings, host: str) -> None:
    open_settings = settings.model_copy(update={"host": host})
    with pytest.raises(SettingsError, match=r"MEDUSAQ_HOST.*no API keys.*MEDUSAQ_ALLOW_OPEN"):
        create_app(open_settings)
    create_app(open_settings.model_copy(update={"allow_open": True}))


def test_where_others_reach_it_is_what_counts(settings: Settings) -> None:
    inside = settings.model_copy(update={"host": "0.0.0.0", "publish_address": "127.0.0.1"})
    check_bind(inside)
    with pytest.raises(SettingsError, match=r"^MEDUSAQ_PUBLISH_ADDRESS: 10\.0\.0\.5 "):
        check_bind(inside.model_copy(update={"publish_address": "10.0.0.5"}))


def test_any_address_is_fine_while_a_key_stands(settings: Settings, store: JobStore) -> None:
    everywhere = settings.model_copy(update={"host": "0.0.0.0"})
    keys = KeyStore(store.db)
    key, _ = keys.create("a", Limits())
    create_app(everywhere)
    keys.revoke(key.id)
    with pytest.raises(SettingsError, match="no API keys"):
        create_app(everywhere)


def test_with_redis_away_it_starts_closed(settings: Settings) -> None:
    away = {"host": "0.0.0.0", "redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    check_bind(settings.model_copy(update=away))


async def _broken() -> None:
    raise RuntimeError("secret detail")


@pytest.mark.anyio
async def test_our_own_fault_is_500_without_details(settings: Settings) -> None:
    app = create_app(settings)
    app.add_api_route("/broken", _broken)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        response = await http.get("/broken")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.anyio
async def test_a_wrong_method_is_told_all_right_ones(settings: Settings) -> None:
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
    ):
        allowed = {path: (await http.put(path)).headers["allow"] for path in ("/v1/jobs", "/v1/jobs/job_x")}
    assert allowed == {"/v1/jobs": "GET, POST", "/v1/jobs/job_x": "DELETE, GET"}


async def _checked_by_fastapi(count: int) -> int:
    return count


@pytest.mark.anyio
async def test_what_fastapi_refuses_is_422_in_the_same_shape(settings: Settings) -> None:
    app = create_app(settings)
    app.add_api_route("/count", _checked_by_fastapi)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        response = await http.get("/count?count=many")
        assert (await http.get("/count?count=3")).json() == 3
    assert response.status_code == 422
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "invalid_value",
        "count",
    )
    assert error["message"].startswith("count: input should be a valid integer")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
