from __future__ import annotations

import ctypes

import pytest

from engine.kernels.build import library
from tests.engine.kernels.attention import opened


@pytest.fixture(scope="session")
def kernels() -> ctypes.CDLL:
    return opened(str(library()))
