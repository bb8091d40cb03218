"""nibble.torch.TrainLinear: the products of `nibble train` in a training loop of torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from . import _core
from .errors import DeviceError


@lru_cache(maxsize=None)
def _products(recipe: str) -> Any:
    return _core.train_products(recipe)


def _matrix(x: torch.Tensor) -> torch.Tensor:
    return x.detach().reshape(-1, x.shape[-1]).contiguous()


@torch.library.custom_op("nibble::train_linear", mutates_args=())
def _forward_op(x: torch.Tensor, weight: torch.Tensor, recipe: str, linear: int, seed: int, step: torch.Tensor) -> torch.Tensor:
    y = _products(recipe).forward(_matrix(x), weight.detach())
    return y.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


@_forward_op.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, recipe: str, linear: int, seed: int, step: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("nibble::train_linear_backward", mutates_args=())
def _backward_op(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, recipe: str, linear: int, seed: int,
                 step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    products, key, gradient = _products(recipe), (linear, seed, int(step)), _matrix(dy)
    dx = products.input_gradient(gradient, weight.detach(), *key)
    dw = products.weight_gradient(gradient, _matrix(x), *key)
    return dx.to(x.dtype).reshape(x.shape), dw.to(weight.dtype)


@_backward_op.register_fake
def _(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, recipe: str, linear: int, seed: int,
      step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.recipe, ctx.linear, ctx.seed, step = inputs
    ctx.save_for_backward(x, weight, step)


def _backward(ctx: Any, dy: torch.Tensor) -> Any:
    x, weight, step = ctx.saved_tensors
    dx, dw = _backward_op(dy, x, weight, ctx.recipe, ctx.linear, ctx.seed, step)
    return dx, dw, None, None, None, None


_forward_op.register_autograd(_backward, setup_context=_setup)


class TrainLinear(nn.Linear):
    """A linear layer whose three products (forward, input gradient, weight gradient) are those of `nibble train`.

    recipe: fp32, bf16, fp8, fp8_block, mxfp8, nvfp4 or nvfp4_no_rht (docs/topics/training.md). Parameters stay those of
    nn.Linear. The draws of stochastic rounding depend on seed, on the number of the layer and on `step`, which each forward
    pass in training mode increases and the state_dict holds. Products are emulated on a CPU.
    """

    recipe: str = "nvfp4"
    seed: int = 0
    number: int = 0
    step: torch.Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
                 recipe: str = "nvfp4", seed: int = 0, number: int = 0) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._begin(recipe, seed, number)

    def _begin(self, recipe: str, seed: int, number: int) -> None:
        _products(recipe)  # an unknown recipe is an error here
        self.recipe, self.seed, self.number = recipe, seed, number
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            raise DeviceError(f"nibble.torch.TrainLinear: x is on {x.device}; this build computes on the CPU only")
        step = self.step.clone()
        if self.training:
            self.step += 1
        y = torch.ops.nibble.train_linear(x, self.weight, self.recipe, self.number, self.seed, step)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}"


def train_linears(model: nn.Module, recipe: str = "nvfp4", *, ignore: Sequence[str] = ("lm_head",), seed: int = 0) -> list[str]:
    """Lets the linear layers of a model train with the products of `nibble train`. Returns their names.

    ignore: names (fnmatch) that stay as they are. Parameters stay the same objects.
    """
    changed = []
    for name, module in model.named_modules():
        if type(module) is nn.Linear and not any(fnmatch.fnmatch(name, p) for p in ignore):
            module.__class__ = TrainLinear
            module._begin(recipe, seed, len(changed))  # type: ignore[attr-defined]
            changed.append(name)
    return changed
