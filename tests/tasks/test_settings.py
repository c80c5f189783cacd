"""Bad settings fail at the start with one line that names the variable."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tasks.errors import SettingsError
from tasks.settings import get_settings, load_settings

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLOTS", "many"),
        ("SLOTS", "0"),
        ("PORT", "70000"),
        ("REDIS_URL", "http://localhost"),
        ("MAX_ATTEMPTS", "-1"),
        ("REDIS_TIMEOUT_S", "0"),
        ("ENGINE_FACTORY", "engine"),
        ("LOG_LEVEL", "LOUD"),
        ("FILES", ""),
        ("FILES", "s3://"),
        ("FILES", "gs://bucket/prefix"),
        ("MAX_FILE_BYTES", "0"),
        ("MAX_QUEUED", "0"),
        ("REDIS_CA", "/nowhere.pem"),
        ("FLOWER_BASIC_AUTH", "password"),
        ("FLOWER_BASIC_AUTH", "user:"),
        ("WEBHOOK_RETRIES_S", "a=2"),
    ],
)
def test_bad_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"MEDUSAQ_{name}", value)
    with pytest.raises(SettingsError, match=f"^MEDUSAQ_{name}: ") as caught:
        load_settings()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "files", ["files", "/srv/files", "file:///srv/files", "s3://bucket", "s3://bucket/a/b"]
)
def test_where_files_may_be(files: str) -> None:
    assert load_settings(files=files).files == files


@pytest.mark.parametrize("name", ["REDIS_CA", "REDIS_CERT", "REDIS_CERT_KEY"])
def test_certificates_are_not_dropped_where_there_is_no_tls(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"MEDUSAQ_{name}", __file__)
    for url in ("redis://127.0.0.1:6379/0", None):
        if url is not None:
            monkeypatch.setenv("MEDUSAQ_REDIS_URL", url)
        else:
            monkeypatch.delenv("MEDUSAQ_REDIS_URL")
        with pytest.raises(SettingsError, match=rf"^MEDUSAQ_{name}: .*is for rediss://"):
            load_settings()
    monkeypatch.setenv("MEDUSAQ_REDIS_URL", "rediss://127.0.0.1:6380/0")
    assert getattr(load_settings(), name.lower()) == Path(__file__)
    monkeypatch.setenv(f"MEDUSAQ_{name}", "")
    assert getattr(load_settings(), name.lower()) is None


def test_heartbeat_must_fit_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDUSAQ_LEASE_MS", "1000")
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match="MEDUSAQ_HEARTBEAT_MS"):
        get_settings()
    get_settings.cache_clear()


@pytest.mark.parametrize(
    ("host", "port", "allowed", "refused"),
    [
        ("0.0.0.0", "9100", "0", True),
        ("10.0.0.5", "9100", "0", True),
        ("0.0.0.0", "9100", "1", False),
        ("0.0.0.0", "0", "0", False),
        ("::1", "9100", "0", False),
    ],
)
def test_a_workers_figures_are_not_open_by_accident(
    monkeypatch: pytest.MonkeyPatch, host: str, port: str, allowed: str, refused: bool
) -> None:
    for name, value in (("METRICS_HOST", host), ("METRICS_PORT", port), ("ALLOW_OPEN", allowed)):
        monkeypatch.setenv(f"MEDUSAQ_{name}", value)
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match=r"^MEDUSAQ_METRICS_HOST: ") if refused else nullcontext():
        get_settings()
    get_settings.cache_clear()


def test_env_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("MEDUSAQ_SLOTS=3\nOTHER=1\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings().slots == 3
    assert load_settings().concurrency == 7


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
