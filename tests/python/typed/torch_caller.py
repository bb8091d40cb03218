# pyright: strict
"""The same for tensors of torch."""

import torch
from torch import nn

import nibble
import nibble.torch


def quantized(w: torch.Tensor) -> torch.Tensor:
    q: nibble.QuantTensor[torch.Tensor] = nibble.quantize(w, "mxfp8")
    codes: torch.Tensor = q.codes
    return codes + q.dequantize("bfloat16")


def model() -> list[str]:
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    trained: list[str] = nibble.torch.train_linears(net, "nvfp4", seed=1)
    layer = nibble.torch.TrainLinear(64, 32, recipe="mxfp8")
    y: torch.Tensor = layer(torch.zeros(4, 64))
    assert y.shape == (4, 32)
    return trained + nibble.torch.convert_linears(net, "nvfp4")
