"""The devices that llama.cpp names."""

from __future__ import annotations

from typing import Any

import llama_cpp
import pytest

from engine.llama import devices as module
from engine.llama.devices import Device, devices, free_device_memory, idle_backends
from engine.llama.model import build


def test_a_build_for_gpus_has_some_and_another_has_none() -> None:
    found = devices()
    assert bool(found) is bool(llama_cpp.llama_supports_gpu_offload())
    assert all(0 < device.free <= device.total for device in found)
    assert free_device_memory() == (sum(device.free for device in found) if found else None)
    assert all(str(device) in build() for device in found)


def test_what_is_read_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor in place of a GPU: every build has it."""
    monkeypatch.setattr(module, "_GPU", 0)
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: True)
    processor = next(device for device in devices() if device.name == "CPU")
    assert processor.description
    assert not processor.integrated
    assert 0 < processor.free <= processor.total


def test_backends_without_a_device_are_named_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's in the place of one whose driver is too old."""
    assert "CPU" not in idle_backends()
    whole = module.ggml_function

    def without(name: str, *types: Any) -> Any:
        return (lambda _backend: 0) if name == "ggml_backend_reg_dev_count" else whole(name, *types)

    monkeypatch.setattr(module, "ggml_function", without)
    monkeypatch.setattr(module, "devices", list)
    assert "CPU" in idle_backends()
    monkeypatch.setattr(module, "devices", lambda: ["a card"])
    assert idle_backends() == []


def test_a_build_is_told_with_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing that was measured on one device is taken for another's."""
    monkeypatch.setattr("engine.llama.model.devices", list)
    without = build()
    for name in ("a card", "another card"):
        device = Device("CUDA0", name, integrated=False, free=1, total=2)
        monkeypatch.setattr("engine.llama.model.devices", lambda device=device: [device])
        assert build() == f"{without} CUDA0: {name}"
