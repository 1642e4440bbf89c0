"""Decides where a model's encoder runs: the only place that asks for graphics processors."""

from __future__ import annotations

from typing import Literal

import torch

from fedalign.errors import UserError

Device = Literal["auto", "cpu", "cuda", "mps"]
CPU = torch.device("cpu")


def present() -> dict[str, str]:
    """The graphics processors that torch can use, with a name for people."""
    found: dict[str, str] = {}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_device_name(0)
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    return found


def chosen(wanted: Device, encoder: str, portable: bool) -> torch.device:
    """The device for an encoder. `portable`: the encoder runs on other devices than the CPU."""
    if wanted == "cpu":
        return CPU
    there = present()
    if wanted == "auto":
        return torch.device(next(iter(there), "cpu")) if portable else CPU
    if wanted not in there:
        raise UserError(f"torch finds no device {wanted} here; set engine.device = 'cpu' or 'auto'")
    if not portable:
        raise UserError(f"the encoder {encoder} runs on the CPU only; set engine.device = 'cpu' or choose another one")
    return torch.device(wanted)


def sentence(device: torch.device, encoder: str) -> str:
    """What was taken, in one line."""
    name = present().get(device.type, "")
    return f"device: the encoder {encoder} runs on {device.type}{f' ({name})' if name else ''}, all else on the CPU"
