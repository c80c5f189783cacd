"""Uploads as forms: what is refused, with which answer, and that nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.api.forms import FILE, FORM, PURPOSE, form, left_behind
from tests.api.requests.test_bad_input import error
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack

FILE_LIMIT = 100_000


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, max_file_bytes=FILE_LIMIT)


@pytest.fixture(autouse=True)
def _nothing_stays(gateway: GatewayProcess, gateway_settings: Settings) -> Iterator[None]:
    yield
    for file in gateway.http.get("/v1/files").json()["data"]:
        gateway.http.delete(f"/v1/files/{file['id']}")
    assert left_behind(gateway_settings) == ([], [], set())
    assert "Traceback" not in gateway.log.read_text()


ANCHOR = ("expires_after[anchor]", "created_at")


def seconds(value: str) -> tuple[str, str]:
    return ("expires_after[seconds]", value)


REFUSED: list[tuple[bytes, str, str | None]] = [
    (form(PURPOSE), "invalid_value", "file"),
    (form(FILE), "invalid_value", "purpose"),
    (form(), "invalid_value", "purpose"),
    (form(("purpose", "fine-tune"), FILE), "invalid_value", "purpose"),
    (form(FILE, ("purpose", "batch_output")), "invalid_value", "purpose"),
    (form(("purpose", b"\xff"), FILE), "invalid_value", "purpose"),
    (form(PURPOSE, PURPOSE, FILE), "invalid_value", "purpose"),
    (form(PURPOSE, FILE, FILE), "invalid_value", "file"),
    (form(PURPOSE, ("file", "{}")), "invalid_value", "file"),
    (form(PURPOSE, ("file", b"", "")), "invalid_value", "file"),
    (form(PURPOSE, ("file", b"", "folder/")), "invalid_value", "file"),
    (form(PURPOSE, ("data", "x"), FILE), "unknown_field", "data"),
    (form(PURPOSE, ("", "x"), FILE), "unknown_field", None),
    (form(PURPOSE, ANCHOR, FILE), "invalid_value", "expires_after[seconds]"),
    (form(PURPOSE, seconds("3600"), FILE), "invalid_value", "expires_after[anchor]"),
    (form(PURPOSE, ("expires_after[anchor]", "now"), FILE), "invalid_value", "expires_after[anchor]"),
    (form(PURPOSE, ANCHOR, seconds("3599"), FILE), "invalid_value", "expires_after[seconds]"),
    (form(PURPOSE, ANCHOR, seconds("2592001"), FILE), "invalid_value", "expires_after[seconds]"),
    (form(PURPOSE, FILE, ANCHOR, seconds("soon")), "invalid_value", "expires_after[seconds]"),
    (form(("purpose", "b" * 2000), FILE), "invalid_value", "purpose"),
    (form(PURPOSE, FILE, end=b""), "malformed_form", None),
    (form(PURPOSE, FILE)[:-4], "malformed_form", None),
    (form(PURPOSE, FILE, end=b"--B\r\nContent-"), "malformed_form", None),
    (form(*[PURPOSE] * 9), "invalid_value", "purpose"),
    (b"", "malformed_form", None),
    (b"{}", "malformed_form", None),
    (b"\x00" * 50_000, "malformed_form", None),
    (b"--B\r\n" + b"X: " + b"y" * 20_000 + b"\r\n\r\n--B--\r\n", "malformed_form", None),
    (b"--B\r\n" + b"X: y\r\n" * 20 + b"\r\n--B--\r\n", "malformed_form", None),
    (b"--B\r\nContent-Disposition: attachment\r\n\r\nx\r\n--B--\r\n", "malformed_form", None),
    (b"--B\r\n\xff: form-data\r\n\r\nx\r\n--B--\r\n", "malformed_form", None),
    (b"--B\nContent-Disposition: form-data; name=purpose\n\nbatch\n--B--\n", "malformed_form", None),
]


@pytest.mark.parametrize(("body", "code", "param"), REFUSED, ids=range(len(REFUSED)))
def test_a_form_that_is_refused(http: httpx.Client, body: bytes, code: str, param: str | None) -> None:
    found = error(http.post("/v1/files", content=body, headers=FORM), 400)
    assert (found["code"], found["param"]) == (code, param)
    in_single_bytes = (body[n : n + 1] for n in range(min(len(body), 3000)))
    found = error(http.post("/v1/files", content=in_single_bytes, headers=FORM), 400)
    assert found["code"] in (code, "malformed_form")


@pytest.mark.parametrize(
    "kind",
    [
        *(None, "", "application/json", "application/x-www-form-urlencoded", "multipart/mixed; boundary=B"),
        *("multipart/form-data", "multipart/form-data; boundary="),
    ],
)
def test_what_is_no_form(http: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    found = error(http.post("/v1/files", content=form(PURPOSE, FILE), headers=headers), 415)
    assert (found["code"], found["param"]) == ("unsupported_media_type", "Content-Type")


def test_parts_in_any_order_and_sizes(http: httpx.Client) -> None:
    for body in (
        form(PURPOSE, FILE),
        form(FILE, PURPOSE),
        form(ANCHOR, FILE, seconds("3600"), PURPOSE),
        b"a preamble\r\n" + form(FILE, PURPOSE) + b"an epilogue",
    ):
        for content in (body, (body[n : n + 1] for n in range(len(body)))):
            made = http.post("/v1/files", content=content, headers=FORM).json()
            assert (made["bytes"], made["filename"]) == (3, "a.jsonl")
            assert http.get(f"/v1/files/{made['id']}/content").content == b"{}\n"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\a.jsonl", "a.jsonl"),
        ("a\tb\x7f.jsonl", "ab.jsonl"),
        ("x" * 300, "x" * 255),
        ("日本 ü.jsonl", "日本 ü.jsonl"),
        ("  a ", "a"),
        ("..", ".."),
    ],
)
def test_a_filename_is_a_name_only(http: httpx.Client, given: str, kept: str) -> None:
    made = http.post("/v1/files", content=form(PURPOSE, ("file", b"", given)), headers=FORM).json()
    assert made["filename"] == kept
    assert http.get(f"/v1/files/{made['id']}/content").status_code == 200


def test_the_limit_is_of_the_file_to_the_byte(gateway: GatewayProcess, http: httpx.Client) -> None:
    most = http.post("/v1/files", content=form(PURPOSE, ("file", b"x" * FILE_LIMIT, "a")), headers=FORM)
    assert most.json()["bytes"] == FILE_LIMIT
    over = form(PURPOSE, ("file", b"x" * (FILE_LIMIT + 1), "a"))
    found = error(http.post("/v1/files", content=over, headers=FORM), 413)
    assert (found["code"], found["param"]) == ("body_too_large", "file")
    assert f"limit of {FILE_LIMIT} bytes" in found["message"]
    with OpenAI(api_key="none", base_url=f"{gateway.url}/v1", max_retries=0) as client:
        for size in (FILE_LIMIT + 1, 10_000_000):
            with pytest.raises(openai.APIStatusError) as caught:
                client.files.create(file=b"x" * size, purpose="batch")
            assert caught.value.status_code == 413


def test_a_body_over_the_limit(http: httpx.Client) -> None:
    huge = form(PURPOSE, ("file", b"x" * FILE_LIMIT * 3, "a"))
    assert error(http.post("/v1/files", content=huge, headers=FORM), 413)["code"] == "body_too_large"
    preamble = (b"x" * 1000 for _ in range(1000))
    assert error(http.post("/v1/files", content=preamble, headers=FORM), 413)["code"] == "body_too_large"
    found = error(http.post("/v1/jobs", json={"prompt": "x" * 5_000_000}), 413)
    assert "4194304" in found["message"], "that of the other routes stands"


def test_a_bad_idempotency_key(http: httpx.Client) -> None:
    for key in ("", "k" * 256):
        headers = {**FORM, "Idempotency-Key": key}
        found = error(http.post("/v1/files", content=form(PURPOSE, FILE), headers=headers), 400)
        assert found["param"] == "Idempotency-Key"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("purpose=x", "purpose"),
        ("after=file_none", "after"),
        ("status=x", "status"),
    ],
)
def test_a_bad_query(http: httpx.Client, query: str, param: str) -> None:
    assert error(http.get(f"/v1/files?{query}"), 400)["param"] == param


@pytest.mark.parametrize("file_id", ["file_none", "..%2f..%2fetc%2fpasswd", "%00", "%ff"])
def test_an_unknown_file(http: httpx.Client, file_id: str) -> None:
    for call in (http.get, http.delete):
        assert error(call(f"/v1/files/{file_id}"), 404)["code"] in ("file_not_found", "not_found")
    assert error(http.get(f"/v1/files/{file_id}/content"), 404)["code"] in ("file_not_found", "not_found")
