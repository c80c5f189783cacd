"""Bad settings fail at the start with one line that names the variable."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import SettingsError
from tasks.settings import Settings, get_settings, load_settings

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
    if name == "lease_ms":
        monkeypatch.setenv("MEDUSAQ_HEARTBEAT_MS", "50")  # which must fit into it
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
