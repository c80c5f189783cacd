"""The check of large models, with a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.llama.model import default_model_path
from tests.large_model.__main__ import one_model
from tests.large_model.stack import Stack
from tests.support.medusaq_up import Failed

pytestmark = [pytest.mark.slow, pytest.mark.stack]


def test_a_stack_that_does_not_start_shows_what_it_said(tmp_path: Path) -> None:
    with (
        pytest.raises(Failed, match=r"not ready\n(.*\n)*.*none\.gguf"),
        Stack(tmp_path).up([tmp_path / "none.gguf"]),
    ):
        pass


@pytest.mark.thorough
@pytest.mark.timeout(900)  # beside other tests
def test_the_default_model_loses_nothing_and_takes_the_memory_that_was_expected(tmp_path: Path) -> None:
    stack = Stack(tmp_path, kv_cells=2048, weights="as_shipped")
    rows = [*one_model(stack, Path(default_model_path()))]
    assert [f"{what}: {found}" for what, found, right in rows if not right] == []
    assert any(what == "memory of the worker" for what, _, _ in rows)
    assert any("up to 2048 tokens" in found for _, found, _ in rows)
