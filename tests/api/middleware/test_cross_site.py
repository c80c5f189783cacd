"""What a page of another site can send without a preflight, to each POST that the OpenAPI document has."""

from __future__ import annotations

import re

import httpx
import pytest

from api.app import create_app
from tasks.base.settings import Settings
from tasks.records.ids import BATCH, DELIVERY, JOB
from tests.api.forms import FILE, FORM, PURPOSE, form

pytestmark = pytest.mark.stack

IDS = {"job_id": JOB.new(), "batch_id": BATCH.new(), "delivery_id": DELIVERY.new()}
DOCUMENT = create_app(Settings(_env_file=None)).openapi()  # type: ignore[call-arg]
POSTS = [path for path, operations in DOCUMENT["paths"].items() if "post" in operations]
SIMPLE = {  # the content types of forms, and none
    "text/plain": b'{"prompt": "x"}=',
    "application/x-www-form-urlencoded": b"prompt=x",
    FORM["Content-Type"]: form(PURPOSE, FILE),
    "": b"",
}
# Without Origin and Sec-Fetch-Site.
OLD = "Mozilla/5.0 (Windows NT 10.0; rv:60.0) Gecko/20100101 Firefox/60.0"
NEW = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
PAGES = [
    {"Sec-Fetch-Site": "cross-site", "User-Agent": NEW},
    {"Sec-Fetch-Site": "same-site", "User-Agent": NEW},  # another port of this machine
    {"Sec-Fetch-Site": "CROSS-SITE"},
    {"Origin": "null", "User-Agent": NEW},  # of a sandboxed frame, or after a redirect
    {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "http://localhost:3000", "User-Agent": NEW},
    {"User-Agent": OLD},
    {"User-Agent": OLD, "Referer": "http://127.0.0.1/"},
]


def _url(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda match: IDS[match[1]], path)


def _sent(http: httpx.Client, path: str, kind: str, headers: dict[str, str]) -> httpx.Response:
    typed = {"Content-Type": kind} if kind else {}
    request = http.build_request("POST", _url(path), content=SIMPLE[kind], headers=typed)
    for name in ("accept", "user-agent"):
        request.headers.pop(name, None)
    request.headers.update(headers)
    return http.send(request)


@pytest.mark.parametrize("kind", SIMPLE)
@pytest.mark.parametrize("path", POSTS)
def test_a_page_of_another_site_posts_nothing(http: httpx.Client, path: str, kind: str) -> None:
    before = http.get("/v1/files").json(), http.get("/v1/webhooks/secret").json()
    for page in PAGES:
        answer = _sent(http, path, kind, page)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site"), page
    assert (http.get("/v1/files").json(), http.get("/v1/webhooks/secret").json()) == before


@pytest.mark.parametrize(
    "program",
    [
        {"User-Agent": "curl/8.5.0"},
        {"User-Agent": "OpenAI/Python 2.7.1"},
        {},
        {"Sec-Fetch-Site": "same-origin", "User-Agent": NEW},  # /docs
        {"Sec-Fetch-Site": "none", "User-Agent": NEW},
    ],
)
def test_programs_and_our_own_page_upload(http: httpx.Client, program: dict[str, str]) -> None:
    assert _sent(http, "/v1/files", FORM["Content-Type"], program).status_code == 200
    assert _sent(http, "/v1/webhooks/secret/rotate", "", program).status_code in (200, 409)


def test_json_needs_a_preflight_which_fails(http: httpx.Client) -> None:
    """So an old browser's name does not matter there: no header lets another site's page send it."""
    answer = http.post("/v1/jobs", json={"prompt": "x"}, headers={"User-Agent": OLD})
    assert answer.status_code == 202
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    preflight = http.options("/v1/jobs", headers=asked)
    assert preflight.status_code == 403
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_page_of_another_site_reads_nothing_by_address_alone(http: httpx.Client) -> None:
    """As an image or a script, which has no Origin. What is public may be opened from anywhere."""
    for path in ("/v1/jobs", "/v1/webhooks/secret", "/metrics"):
        answer = http.get(path, headers={"Sec-Fetch-Site": "cross-site"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site"), path
    assert http.get("/docs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
