"""Fixtures for the job system: a real server, settings that lead to it, real worker processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tests.support.peers.s3 import S3Server
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers

pytest_plugins = ("tests.support.forking.lost_process",)

# By `pytest --durations=0`: what comes last leaves the other processes without work. Files that compute are
# spread among those that wait, so that neither come all at once.
LONGEST_FIRST = (
    "integration/console/test_console.py",
    "engine/core/exactness/test_constrained_drafts.py",
    "integration/test_whole_system.py",
    "cli/stack/test_local_stack.py",
    "cli/commands/test_model.py",
    "benchmarks/large/test_widened.py",
    "engine/medusa/test_lossless_heads.py",
    "cli/stack/test_several_models.py",
    "medusaq/test_examples.py",
    "api/routes/batches/test_tables.py",
    "cli/run/test_interrupted_runs.py",
    "integration/test_online_model.py",
    "tasks/store/test_interleavings.py",
    "cli/run/test_table_run.py",
    "engine/core/exactness/test_to_the_bit.py",
    "tasks/base/test_sentinel_url.py",
    "cli/commands/test_main.py",
    "tasks/worker/windows/test_runner.py",
    "tasks/batches/test_table_batches.py",
    "tasks/batches/test_batch_run.py",
    "cli/reports/test_comparison_report.py",
    "cli/processes/test_resting.py",
    "compiling/source/test_conversion.py",
    "medusaq/test_client.py",
    "tasks/store/windows/test_window_interleavings.py",
    "cli/reports/test_comparison.py",
    "engine/core/exactness/test_f32.py",
    "tasks/webhooks/test_sender.py",
    "engine/sampling/test_draws.py",
    "cli/doctor/test_doctor.py",
    "gpu/test_gpu_check.py",
    "chaos/cases/test_cases.py",
    "network/test_calls_home.py",
    "cli/commands/test_batch.py",
    "engine/core/test_scheduler.py",
    "cli/commands/test_compile.py",
    "engine/sampling/test_any_schema.py",
    "cli/commands/test_key.py",
    "tasks/webhooks/test_webhook_hostile.py",
    "tasks/schema/test_job_request.py",
    "tables/conversion/test_process.py",
    "tasks/worker/test_ends.py",
    "integration/test_browser.py",
    "training/heads/test_train.py",
    "training/heads/test_train_heads.py",
    "project/test_layers.py",
    "engine/core/test_acceptance.py",
    "engine/weights/test_quantise.py",
    "api/service/test_outage.py",
    "cli/run/test_shards.py",
    "project/deployment/test_install.py",
    "tasks/files/test_base.py",
    "tables/templates/test_template.py",
    "project/deployment/test_health_checks.py",
    "release/test_contents.py",
    "cli/commands/test_webhook.py",
    "engine/medusa/onnx/test_missing_packages.py",
    "api/service/test_many_answers.py",
    "api/middleware/test_tracing.py",
    "benchmarks/baselines/test_same_file.py",
    "compiling/source/test_source.py",
    "compiling/source/test_checkpoint.py",
    "engine/sampling/test_schema_texts.py",
    "tasks/batches/interleavings/test_batch_interleavings.py",
    "compiling/source/test_preflight.py",
    "tasks/batches/test_ingest.py",
    "tasks/files/test_manager.py",
    "integration/test_secure_redis.py",
    "engine/speculative/test_grammar_source.py",
    "tasks/batches/shares/test_interactive_shares.py",
    "cli/doctor/test_engine.py",
    "engine/core/test_engine.py",
    "engine/weights/test_format_selection.py",
    "engine/speculative/tuning/test_tuning.py",
    "api/middleware/test_auth.py",
    "cli/views/test_snapshot.py",
    "cli/stack/test_model_pool.py",
    "support/forking/test_forks.py",
)
PLACES = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST_FIRST)}
SERVICES = {"workers", "gateway", "cli"}  # fixtures that start processes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="without services and slow tests")


def pytest_configure() -> None:
    """A suite that a shell runs in the background ignores Ctrl-C, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the collector of garbage, which would walk through all tests again and again: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Close what llama_cpp has opened on import: nothing collects it any more."""
    if opened := sys.modules.get("llama_cpp._utils"):
        opened.outnull_file.close()
        opened.errnull_file.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take longest come first."""
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
    if config.getoption("fast"):
        left_out = [item for item in items if item.get_closest_marker("slow") or _starts_services(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _starts_services(item: pytest.Item) -> bool:
    return item.get_closest_marker("stack") is not None or not SERVICES.isdisjoint(
        getattr(item, "fixturenames", ())
    )


@pytest.fixture(scope="session", autouse=True)
def cache_of_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where engines of this run, in all of its processes, keep what they measured and unpacked."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # what all processes share
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that do not harm it; the key prefix of `settings` keeps them apart."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start(appendfsync="no")  # nobody kills it, and it must not wait for a busy disk
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to stop, kill or freeze."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests that do not harm it; each takes a bucket of its own."""
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


@pytest.fixture
def store(settings: Settings) -> Iterator[JobStore]:
    store = JobStore(settings)
    yield store
    store.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts worker processes and ends them all, however the test went."""
    started = Workers(tmp_path)
    yield started
    started.close()
