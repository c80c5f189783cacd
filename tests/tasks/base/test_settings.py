"""Bad settings fail at the start with one line that names the variable."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tasks.base.errors import SettingsError
from tasks.base.redis_tls import RedisOptions
from tasks.base.setting_names import REMOVED
from tasks.base.settings import WINDOWS_HELD, Settings, get_settings, load_settings

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLOTS", "many"),
        ("SLOTS", "0"),
        ("PORT", "70000"),
        ("REDIS_URL", "http://localhost"),
        ("MAX_ATTEMPTS", "-1"),
        ("REDIS_URL", "redis://localhost/0?socket_timeout=0"),
        ("REDIS_URL", "redis://localhost/0?socket_timeout=soon"),
        ("REDIS_URL", "redis://localhost/0?max_connections=3"),
        ("REDIS_URL", "rediss://localhost/0?ssl_ca_certs=/nowhere.pem"),
        ("REDIS_URL", "rediss://localhost/0?ssl_cert_reqs=perhaps"),
        ("REDIS_URL", "redis+sentinel://localhost/main?ssl_cert_reqs=none"),
        ("METRICS_ADDRESS", "9100"),
        ("METRICS_ADDRESS", "127.0.0.1:0"),
        ("METRICS_ADDRESS", "127.0.0.1:65536"),
        ("ENGINE_FACTORY", "engine"),
        ("LOG_LEVEL", "LOUD"),
        ("FILES", "s3://"),
        ("FILES", "gs://bucket/prefix"),
        ("MAX_FILE_BYTES", "0"),
        ("MAX_QUEUED", "0"),
        ("FLOWER_BASIC_AUTH", "password"),
        ("FLOWER_BASIC_AUTH", "user:"),
        ("WEBHOOK_ALLOW", "127.0.0.0/8"),
        ("WEBHOOK_ALLOW", '["127.0.0.1/8"]'),
    ],
)
def test_bad_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"MEDUSAQ_{name}", value)
    with pytest.raises(SettingsError, match=f"^MEDUSAQ_{name}: ") as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def _limits() -> list[tuple[str, Any, Any]]:
    """Of each number that has one: the last that is taken, and the first that is not."""
    found: list[tuple[str, Any, Any]] = []
    for name, field in Settings.model_fields.items():
        step = 1 if field.annotation is int else 0.001
        for bound in field.metadata:
            least: Any = getattr(bound, "ge", None)
            above: Any = getattr(bound, "gt", None)
            most: Any = getattr(bound, "le", None)
            if least is not None:
                found.append((name, least, least - step))
            if above is not None:
                found.append((name, above + step, above))
            if most is not None:
                found.append((name, most, most + step))
    return found


@pytest.mark.parametrize(("name", "taken", "refused"), _limits())
def test_a_number_up_to_its_limit(
    monkeypatch: pytest.MonkeyPatch, name: str, taken: float, refused: float
) -> None:
    variable = f"MEDUSAQ_{name.upper()}"
    monkeypatch.setenv(variable, f"{taken}")
    assert getattr(load_settings(), name) == taken
    monkeypatch.setenv(variable, f"{refused}")
    with pytest.raises(SettingsError, match=f"^{variable}: "):
        load_settings()


def test_each_limit_of_a_number_is_tested() -> None:
    assert {("slots", 64, 65), ("slots", 1, 0), ("port", 65535, 65536)} <= set(_limits())


@pytest.mark.parametrize(
    "files", ["files", "/srv/files", "file:///srv/files", "s3://bucket", "s3://bucket/a/b"]
)
def test_where_files_may_be(files: str) -> None:
    assert load_settings(files=files).files == files


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_certificates_are_not_dropped_where_there_is_no_tls(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MEDUSAQ_REDIS_URL", f"redis://127.0.0.1:6379/0?{name}={__file__}")
    with pytest.raises(SettingsError, match=rf"^MEDUSAQ_REDIS_URL: .*{name} is for rediss://"):
        load_settings()
    monkeypatch.setenv("MEDUSAQ_REDIS_URL", f"rediss://127.0.0.1:6380/0?{name}={__file__}")
    assert RedisOptions.of(load_settings().redis_url).tls[name] == __file__


@pytest.mark.parametrize(
    ("url", "address", "timeout_s", "tls"),
    [
        ("redis://h/0", "redis://h/0", 3.0, {}),
        ("redis://u:p%40@h:1/2?socket_timeout=0.5", "redis://u:p%40@h:1/2", 0.5, {}),
        ("rediss://h/0", "rediss://h/0", 3.0, {"ssl_cert_reqs": "required", "ssl_check_hostname": True}),
        (
            "rediss://h/0?ssl_cert_reqs=none&socket_timeout=9",
            "rediss://h/0",
            9.0,
            {"ssl_cert_reqs": "none", "ssl_check_hostname": False},
        ),
        (
            "rediss+sentinel://a:1,b:2/main/3?sentinel_password=p%26q&ssl_cert_reqs=required",
            "rediss+sentinel://a:1,b:2/main/3?sentinel_password=p%26q",
            3.0,
            {"ssl_cert_reqs": "required", "ssl_check_hostname": True},
        ),
    ],
)
def test_what_the_url_of_redis_says(url: str, address: str, timeout_s: float, tls: dict[str, Any]) -> None:
    assert RedisOptions.of(load_settings(redis_url=url).redis_url) == RedisOptions(address, timeout_s, tls)


def test_what_follows_from_the_lease() -> None:
    usual = load_settings()
    times = (usual.heartbeat_s, usual.reconcile_s, usual.resend_after_s, usual.worker_ttl_s)
    assert times == (1.0, 2.0, 15.0, 5.0)
    for lease_ms in (200, 10_000, 600_000):
        settings = load_settings(lease_ms=lease_ms)
        assert 10 * settings.heartbeat_s == 5 * settings.reconcile_s == lease_ms / 1000
        assert settings.worker_ttl_s >= 5 * settings.heartbeat_s


@pytest.mark.parametrize(("slots", "more"), [(1, 0), (4, 1), (16, 4), (64, 16)])
def test_what_a_worker_claims_beyond_its_slots(slots: int, more: int) -> None:
    assert load_settings(slots=slots).concurrency == slots + more + WINDOWS_HELD


def test_old_names_say_what_is_instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEDUSAQ_HEARTBEAT_MS", "1000")
    monkeypatch.setenv("MEDUSAQ_PORT", "x")
    (tmp_path / ".env").write_text("medusaq_redis_ca=\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    first, second, third = str(caught.value).split("; ")
    assert first == "MEDUSAQ_HEARTBEAT_MS: is no setting any more: it follows from MEDUSAQ_LEASE_MS"
    assert second == (
        "MEDUSAQ_REDIS_CA: is no setting any more: put ?ssl_ca_certs=FILE into MEDUSAQ_REDIS_URL"
    )
    assert third.startswith("MEDUSAQ_PORT: ")


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_an_old_name_is_none_of_now(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert name.lower() not in Settings.model_fields
    named = set(re.findall(r"MEDUSAQ_([A-Z_]+)", REMOVED[name]))
    assert named <= {field.upper() for field in Settings.model_fields}, "the hint names what there is"
    monkeypatch.setenv(f"MEDUSAQ_{name}", "1")
    with pytest.raises(SettingsError, match=rf"^MEDUSAQ_{name}: is no setting any more: [^;\n]+$"):
        load_settings()


def test_unknown_names_are_told_with_the_nearest_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MEDUSAQ_KVCELLS", "MEDUSAQ_URL", "MEDUSAQ_CONVERTER", "MEDUSAQ_SLOTS", "medusaq_port"):
        monkeypatch.setenv(name, "16")
    (tmp_path / ".env").write_text("MEDUSAQ_XYZ=\nOTHER=1\n")
    monkeypatch.chdir(tmp_path)
    get_settings.cache_clear()
    assert get_settings().port == 16
    get_settings.cache_clear()
    assert capsys.readouterr().err.splitlines() == [
        "warning: MEDUSAQ_KVCELLS: is no setting and has no effect: did you mean MEDUSAQ_KV_CELLS?",
        "warning: MEDUSAQ_XYZ: is no setting and has no effect: remove it from .env",
    ]


@pytest.mark.parametrize(
    ("address", "allowed", "refused"),
    [
        ("0.0.0.0:9100", "0", True),
        ("10.0.0.5:9100", "0", True),
        ("[::]:9100", "0", True),
        ("0.0.0.0:9100", "1", False),
        ("", "0", False),
        ("[::1]:9100", "0", False),
    ],
)
def test_a_workers_figures_are_not_open_by_accident(
    monkeypatch: pytest.MonkeyPatch, address: str, allowed: str, refused: bool
) -> None:
    for name, value in (("METRICS_ADDRESS", address), ("ALLOW_OPEN", allowed)):
        monkeypatch.setenv(f"MEDUSAQ_{name}", value)
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match=r"^MEDUSAQ_METRICS_ADDRESS: ") if refused else nullcontext():
        get_settings()
    get_settings.cache_clear()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Settings(_env_file=None)
    for name in Settings.model_fields:
        monkeypatch.setenv(f"MEDUSAQ_{name.upper()}", "")
    assert Settings(_env_file=None) == usual


def test_env_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("MEDUSAQ_SLOTS=3\nOTHER=1\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings().slots == 3
    assert load_settings().concurrency == 3 + WINDOWS_HELD


def test_a_worker_with_bad_settings_ends_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tasks.app", "worker", "-P", "threads"],
        cwd=ROOT,
        env={"MEDUSAQ_SLOTS": "many", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: MEDUSAQ_SLOTS: ")
    assert len(done.stderr.splitlines()) == 1
