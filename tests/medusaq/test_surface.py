"""The client's names, fields and settings."""

from __future__ import annotations

import asyncio
import inspect
import socket
import subprocess
import sys
from typing import Any, get_args

import pytest

import medusaq
from api.routes.batches import BatchRequest
from medusaq import AsyncClient, Client, GatewayError, GatewayUnreachable, MedusaqError
from medusaq.connection import AsyncConnection, BlockingConnection
from medusaq.fields import BatchFields, JobFields
from medusaq.records import BATCH_ENDS, JOB_ENDS
from medusaq.steps import Step
from tasks.records.batch import ENDED
from tasks.records.job import TERMINAL
from tasks.schema.job_request import JobRequest
from tests.support.servers import free_port
from tests.support.workers import ROOT


def fields_of(model: Any) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_fields_are_those_of_the_api() -> None:
    made = {"prompt", "messages", "response"}
    assert set(JobFields.__annotations__) == fields_of(JobRequest) - made
    scheduled = fields_of(BatchRequest) - {"input_file_id", "completion_window", "body", "model"}
    sampling = set(JobFields.__annotations__) - {"priority", "deadline", "webhook", "metadata"}
    assert set(BatchFields.__annotations__) == scheduled | sampling


def test_the_message_of_a_refusal_is_one_line() -> None:
    assert str(GatewayError(400, {"message": "prompt: must\n  be text"})) == "prompt: must be text"
    assert str(GatewayError(500, {})) == "HTTP 500"


def test_the_ends_are_those_of_the_records() -> None:
    assert {status.value for status in TERMINAL} == JOB_ENDS
    assert {status.value for status in ENDED} == BATCH_ENDS


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        return {
            name: [*inspect.signature(method).parameters]
            for name, method in vars(kind).items()
            if inspect.isfunction(method) and not name.startswith("__a") and not name.startswith("__e")
        }

    assert surface(Client) == surface(AsyncClient)


def test_both_connections_know_every_step() -> None:
    for kind in (BlockingConnection, AsyncConnection):
        source = inspect.getsource(kind)
        for step in get_args(Step):
            assert step.__name__ in source


def test_every_public_name_is_there_and_no_other() -> None:
    assert sorted(medusaq.__all__) == medusaq.__all__
    assert {name: getattr(medusaq, name).__name__ for name in medusaq.__all__} == {
        name: name for name in medusaq.__all__
    }
    with pytest.raises(AttributeError, match="has no attribute 'Clint'"):
        medusaq.Clint  # noqa: B018


def test_only_httpx_and_what_it_brings_is_loaded() -> None:
    others = {"api", "tasks", "tables", "cli", "engine", "pydantic", "redis", "fastapi"}
    code = f"import sys; from medusaq import Client, AsyncClient; print(*{others} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "ftp://x", "http://", "http://a:port", "x"])
def test_an_address_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(MedusaqError, match=r"^[^\n]+$"):
        Client(url)


def test_a_key_that_no_header_can_hold_is_refused_and_not_shown() -> None:
    with pytest.raises(MedusaqError, match="characters that no key has") as refused:
        Client(api_key="mq_secret\n")
    assert "secret" not in str(refused.value)


def test_place_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MEDUSAQ_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        monkeypatch.setenv("MEDUSAQ_API_KEY", "the-key")

        async def main() -> None:
            async with AsyncClient(patience_s=0) as client:
                asking = asyncio.ensure_future(client.job("j"))
                peer, _ = await asyncio.to_thread(server.accept)
                seen.append((await asyncio.to_thread(peer.recv, 4096)).decode())
                peer.close()
                with pytest.raises(GatewayUnreachable):
                    await asking

        asyncio.run(main())
    assert "GET /v1/jobs/j HTTP/1.1" in seen[0]
    assert "authorization: Bearer the-key" in seen[0].replace("Authorization", "authorization")


def test_no_gateway_is_one_line() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port()}", patience_s=0) as client,
        pytest.raises(GatewayUnreachable, match=r"^no answer from the gateway at .*: connection refused$"),
    ):
        client.job("j")
