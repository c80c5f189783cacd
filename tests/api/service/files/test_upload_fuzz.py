"""Forms of any kind, whole and torn: each is stored exactly or refused in the one shape of errors."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.api.forms import FORM, form, left_behind
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack

LIMIT = 3000  # bytes of a file, so that some are too large
REFUSALS = {400, 413, 415}
NAMES = st.sampled_from(["file", "purpose", "expires_after[anchor]", "expires_after[seconds]", "other", ""])
FILENAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\r\n\x00'), max_size=30)
VALUES = st.one_of(
    st.sampled_from([b"batch", b"created_at", b"3600", b"-1", b"batch_output"]), st.binary(max_size=40)
)
FIELDS = st.tuples(NAMES, VALUES)
CONTENT = st.one_of(
    st.binary(max_size=200),
    st.integers(LIMIT - 2, LIMIT + 2).map(lambda size: b"x" * size),
    st.sampled_from([b"--B", b"\r\n--B", b"\r\n--B\r\n", b"\r\n--", b"\r", b"--B--", b"\x00" * 9]),
)
FILES = st.tuples(st.just("file"), CONTENT, FILENAMES)
GOOD = st.tuples(FILES, st.just(("purpose", b"batch")))
FORMS = st.one_of(
    st.lists(st.one_of(FIELDS, FILES), max_size=5).map(tuple), GOOD, GOOD.map(lambda parts: parts[::-1])
)
HEADERS = st.sampled_from(
    [
        FORM["Content-Type"],
        'multipart/form-data; boundary="B"',
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=C",
        f"multipart/form-data; boundary={'B' * 300}",
        "multipart/form-data",
        "multipart/mixed; boundary=B",
        "application/json",
        "multipart/form-data; boundary*=utf-8''B; charset=\"",
    ]
)
FUZZED = hypothesis_settings(
    max_examples=120,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, max_file_bytes=LIMIT)


def refused(answer: httpx.Response) -> None:
    assert answer.status_code in REFUSALS, (answer.status_code, answer.text)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def stored(http: httpx.Client, gateway_settings: Settings) -> None:
    """What is there is what the list says, and nothing is half there."""
    objects, unfinished, _ = left_behind(gateway_settings)
    listed = {file["id"] for file in http.get("/v1/files", params={"limit": 100}).json()["data"]}
    assert {name.removeprefix("files/") for name in objects} == listed
    assert unfinished == []
    for file in listed:
        http.delete(f"/v1/files/{file}")


@FUZZED
@given(parts=FORMS, header=HEADERS)
def test_any_form(
    gateway: GatewayProcess, gateway_settings: Settings, parts: tuple[tuple[str, ...], ...], header: str
) -> None:
    answer = gateway.http.post("/v1/files", content=form(*parts), headers={"Content-Type": header})  # type: ignore[arg-type]
    if answer.status_code != 200:
        refused(answer)
    else:
        contents = [part[1] for part in parts if part[0] == "file"]
        read = gateway.http.get(f"/v1/files/{answer.json()['id']}/content").content
        # Content that spells the boundary ends there, as any reader of the form would have it.
        assert read == contents[0] or b"\r\n--B" in contents[0]
        assert answer.json()["bytes"] == len(read) <= LIMIT
    stored(gateway.http, gateway_settings)


@FUZZED
@given(
    parts=GOOD,
    cut=st.integers(0, 400),
    put=st.one_of(st.binary(max_size=8), st.sampled_from([b"\r\n", b"--B", b"\r\n--B--\r\n", b'"', b";"])),
    gone=st.integers(0, 60),
)
def test_a_torn_form(
    gateway: GatewayProcess,
    gateway_settings: Settings,
    parts: tuple[tuple[str, ...], ...],
    cut: int,
    put: bytes,
    gone: int,
) -> None:
    whole = form(*parts)  # type: ignore[arg-type]
    torn = whole[:cut] + put + whole[cut + gone :]
    answer = gateway.http.post("/v1/files", content=torn, headers=FORM)
    if answer.status_code != 200:
        refused(answer)
    stored(gateway.http, gateway_settings)


def test_it_still_serves(gateway: GatewayProcess) -> None:
    """After all of the above."""
    whole = form(("purpose", b"batch"), ("file", b"{}\n", "a.jsonl"))
    assert gateway.http.post("/v1/files", content=whole, headers=FORM).status_code == 200
    assert "Traceback" not in gateway.log.read_text()
