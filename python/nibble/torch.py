"""Modules and functions for torch models on a CPU. Importing this module imports torch; `import nibble` does not."""

from __future__ import annotations

import fnmatch
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import jobs, tensors
from ._torch_train import TrainLinear, train_linears
from .errors import DeviceError, UsageError
from .reports import QuantizeReport
from .tensors import Packed, QuantTensor

__all__ = ["CheckpointLinear", "FakeQuantize", "Linear", "TrainLinear", "convert_linears", "export_quantized", "fake_quantize",
           "fake_quantize_linears", "observe", "train_linears"]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, format: str, options: dict[str, Any], clip: bool) -> torch.Tensor:
        q = tensors.quantize(x, format, **options)
        y = q.dequantize(str(x.dtype).removeprefix("torch."))
        ctx.clip = clip
        if clip:
            ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if not ctx.clip:
            return gradient, None, None, None
        x, y = ctx.saved_tensors
        # A number that saturated is larger than every number near it that can be expressed.
        return torch.where((x.abs() > y.abs() * 1.25) & (y != 0), torch.zeros_like(gradient), gradient), None, None, None


@torch.library.custom_op("nibble::fake_quantize", mutates_args=())
def _fake_quantize_op(x: torch.Tensor, format: str) -> torch.Tensor:
    return tensors.quantize(x.detach(), format).dequantize(str(x.dtype).removeprefix("torch."))


@_fake_quantize_op.register_fake
def _(x: torch.Tensor, format: str) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_fake_quantize_op.register_autograd(lambda ctx, gradient: (gradient, None))


def fake_quantize(x: torch.Tensor, format: str = "nvfp4", *, clip: bool = False, **options: Any) -> torch.Tensor:
    """The numbers that a quantized x stands for, in x's type. The gradient passes straight through.

    clip: no gradient where a number was cut to the largest magnitude of its block (with amax=...). options: of
    nibble.quantize(). Under torch.compile, calls without options are one operator.
    """
    if torch.compiler.is_compiling():
        if options or clip:
            raise UsageError("fake_quantize: options are not supported under torch.compile")
        return _fake_quantize_op(x, format)
    return _StraightThrough.apply(x, format, options, clip)


class FakeQuantize(nn.Module):
    """fake_quantize as a module."""

    def __init__(self, format: str = "nvfp4", **options: Any) -> None:
        super().__init__()
        self.format, self.options = format, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fake_quantize(x, self.format, **self.options)

    def extra_repr(self) -> str:
        return ", ".join([self.format, *(f"{k}={v}" for k, v in self.options.items())])


class _FakeLinear(nn.Linear):
    """A linear layer whose weights and, optionally, inputs are fake-quantized in each forward pass."""

    weight_format: str
    input_format: str | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.input_format is not None:
            x = fake_quantize(x, self.input_format)
        return nn.functional.linear(x, fake_quantize(self.weight, self.weight_format), self.bias)


def fake_quantize_linears(model: nn.Module, format: str = "nvfp4", *, inputs: str | None = None,
                          ignore: Sequence[str] = ("lm_head",)) -> list[str]:
    """Lets the linear layers of a model train under the rounding of `format` (QAT). Returns their names.

    inputs: a format for the inputs, too. ignore: names (fnmatch) that stay as they are. Parameters stay the same objects.
    """
    changed = []
    for name, module in model.named_modules():
        if type(module) is nn.Linear and not any(fnmatch.fnmatch(name, p) for p in ignore):
            module.__class__ = _FakeLinear
            module.weight_format, module.input_format = format, inputs  # type: ignore[assignment]
            changed.append(name)
    return changed


def _quant_tensor(weight: Any, block_scales: Any, float_scales: Any, tensor_scale: Any, format: str) -> QuantTensor[torch.Tensor]:
    scale = 1.0 if tensor_scale is None else float(tensor_scale)
    return QuantTensor(format, weight, block_scales, float_scales=float_scales, tensor_scale=scale)


def _product(x: torch.Tensor, w: Any, bias: torch.Tensor | None, inputs: str | None, input_scale: torch.Tensor | None) -> torch.Tensor:
    return tensors.matmul(x.detach(), w, bias=None if bias is None else bias.detach(), inputs=inputs,
                          input_scale=None if input_scale is None else float(input_scale))


@torch.library.custom_op("nibble::linear", mutates_args=())
def _linear_op(x: torch.Tensor, weight: torch.Tensor, block_scales: torch.Tensor | None, float_scales: torch.Tensor | None,
               tensor_scale: torch.Tensor | None, format: str, bias: torch.Tensor | None, inputs: str | None,
               input_scale: torch.Tensor | None) -> torch.Tensor:
    return _product(x, _quant_tensor(weight, block_scales, float_scales, tensor_scale, format), bias, inputs, input_scale)


@_linear_op.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, block_scales: torch.Tensor | None, float_scales: torch.Tensor | None,
      tensor_scale: torch.Tensor | None, format: str, bias: torch.Tensor | None, inputs: str | None,
      input_scale: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("nibble::linear_backward", mutates_args=())
def _linear_backward_op(gradient: torch.Tensor, weight: torch.Tensor, block_scales: torch.Tensor | None,
                        float_scales: torch.Tensor | None, tensor_scale: torch.Tensor | None, format: str) -> torch.Tensor:
    q = _quant_tensor(weight, block_scales, float_scales, tensor_scale, format)
    return gradient @ q.dequantize(str(gradient.dtype).removeprefix("torch."))


@_linear_backward_op.register_fake
def _(gradient: torch.Tensor, weight: torch.Tensor, block_scales: torch.Tensor | None, float_scales: torch.Tensor | None,
      tensor_scale: torch.Tensor | None, format: str) -> torch.Tensor:
    cols = weight.shape[-1] * (2 if weight.dtype == torch.uint8 else 1)
    return gradient.new_empty((*gradient.shape[:-1], cols))


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.weight, ctx.block_scales, ctx.float_scales, ctx.tensor_scale, ctx.format, bias, _, _ = inputs
    ctx.has_bias = bias is not None


def _linear_backward(ctx: Any, gradient: torch.Tensor) -> Any:
    dx = _linear_backward_op(gradient, ctx.weight, ctx.block_scales, ctx.float_scales, ctx.tensor_scale, ctx.format)
    db = gradient.flatten(0, -2).sum(0) if ctx.has_bias else None
    return dx, None, None, None, None, None, db, None, None


_linear_op.register_autograd(_linear_backward, setup_context=_setup)


class Linear(nn.Module):
    """A linear layer with quantized weights (frozen), multiplied by nibble's kernels. Buffers have Model Optimizer's names:
    weight, weight_scale, weight_scale_2. Gradients flow to the input and the bias. `model.to(dtype)` changes no code or scale.

    inputs: quantizes the inputs, too, as nibble.matmul() does; their gradient passes straight through."""

    weight: torch.Tensor
    weight_scale: torch.Tensor | None
    weight_scale_2: torch.Tensor | None
    input_scale: torch.Tensor | None
    inputs: str | None = None

    def __init__(self, q: QuantTensor[torch.Tensor], bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.format = q.format
        self.out_features, self.in_features = q.shape
        self.register_buffer("weight", q.codes)
        self.register_buffer("weight_scale", q.block_scales if q.block_scales is not None else q.float_scales)
        self.register_buffer("weight_scale_2", torch.tensor(q.tensor_scale, dtype=torch.float32))
        self.register_buffer("input_scale", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self._packed: Packed | None = None
        self._packed_from: tuple[int, int] | None = None

    @classmethod
    def from_quantized(cls, q: QuantTensor[torch.Tensor], bias: torch.Tensor | None = None) -> "Linear":
        return cls(q, bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear, format: str = "nvfp4", **options: Any) -> "Linear":
        """Quantizes the weights of a linear layer. options: of nibble.quantize()."""
        return cls(tensors.quantize(linear.weight.detach(), format, **options), linear.bias)

    def _scales(self) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Block scales, float scales and the tensor scale."""
        if self.format in ("fp8_row", "fp8_block128", "int4"):
            return None, self.weight_scale, None
        return self.weight_scale, None, self.weight_scale_2

    def quantized(self) -> QuantTensor[torch.Tensor]:
        """The weights, without a copy."""
        return _quant_tensor(self.weight, *self._scales(), self.format)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            raise DeviceError(f"nibble.torch.Linear: x is on {x.device}; this build computes on the CPU only")
        wants_gradient = torch.is_grad_enabled() and (x.requires_grad or (self.bias is not None and self.bias.requires_grad))
        if torch.compiler.is_compiling() or wants_gradient:
            return _linear_op(x, self.weight, *self._scales(), self.format, self.bias, self.inputs, self.input_scale)
        current = (self.weight.data_ptr(), self.weight._version)
        if self._packed is None or self._packed_from != current:
            self._packed, self._packed_from = Packed(self.quantized()), current
        return _product(x, self._packed, self.bias, self.inputs, self.input_scale)

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear":
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            now = self._buffers[name]
            if now is not None and now.dtype != buffer.dtype:  # a conversion of the model's type
                self._buffers[name] = buffer.to(now.device)
        return self

    def extra_repr(self) -> str:
        inputs = f", inputs={self.inputs}" if self.inputs else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, format={self.format}{inputs}"


class CheckpointLinear(Linear):
    """A Linear whose buffers are the tensors of a Model Optimizer checkpoint, with their names, types and shapes: weight,
    weight_scale, weight_scale_2, input_scale. nibble.transformers makes them."""

    def __init__(self, format: str, shape: tuple[int, int], buffers: dict[str, torch.Tensor], bias: torch.Tensor | None = None,
                 inputs: str | None = None) -> None:
        nn.Module.__init__(self)
        self.format, self.inputs = format, inputs
        self.out_features, self.in_features = shape
        for name in ("weight", "weight_scale", "weight_scale_2", "input_scale"):
            self.register_buffer(name, buffers.get(name))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=bias.requires_grad)
        self._packed, self._packed_from = None, None

    def _scales(self) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        if self.format == "fp8":
            return None, None, self.weight_scale
        return super()._scales()


def convert_linears(model: nn.Module, format: str = "nvfp4", *, ignore: Sequence[str] = ("lm_head",), **options: Any) -> list[str]:
    """Replaces the linear layers of a model by Linear with quantized weights. Returns their names.

    ignore: names (fnmatch) that stay as they are. options: of nibble.quantize().
    """
    changed = []
    for name, module in list(model.named_modules()):
        if type(module) not in (nn.Linear, _FakeLinear) or any(fnmatch.fnmatch(name, p) for p in ignore):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], Linear.from_linear(module, format, **options))
        changed.append(name)
    return changed


def observe(model: nn.Module, forward_loop: Callable[[nn.Module], Any]) -> dict[str, float]:
    """The largest magnitude of the inputs of each linear layer while forward_loop(model) runs, by name."""
    largest: dict[str, torch.Tensor] = {}

    def hook(name: str) -> Any:
        def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            x = arguments[0].detach()
            if x.numel():
                now = x.abs().amax().float()
                largest[name] = torch.maximum(largest[name], now) if name in largest else now

        return note

    handles = [m.register_forward_pre_hook(hook(name)) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    try:
        with torch.no_grad():
            forward_loop(model)
    finally:
        for handle in handles:
            handle.remove()
    return {name: float(value) for name, value in largest.items()}


def export_quantized(model: Any, config: Mapping[str, Any] | str | os.PathLike[str], out: str | os.PathLike[str],
                     forward_loop: Callable[[nn.Module], Any] | None = None, *, tokenizer: Any = None, arithmetic: str = "",
                     **options: Any) -> QuantizeReport:
    """Does the work of `mtq.quantize(model, config, forward_loop)` and `export_hf_checkpoint(model, export_dir=out)` of Model
    write, with the same bytes. The model of transformers stays as it is; a copy of it is written to a temporary folder.

    config: a quantizer configuration of Model Optimizer, or a recipe of nibble. forward_loop: runs a text through the model,
    where the configuration has static scales of inputs. arithmetic: of scales; empty: "true" for a model on a CPU and
    "reciprocal" on a GPU, as in Model Optimizer. options: of nibble.quantize_checkpoint().
    """
    if not arithmetic:
        arithmetic = "true" if next(model.parameters()).device.type == "cpu" else "reciprocal"
    with tempfile.TemporaryDirectory(prefix="nibble-export-") as folder:
        source, recipe = pathlib.Path(folder, "model"), config
        if isinstance(config, Mapping):
            recipe = pathlib.Path(folder, "config.yaml")
            recipe.write_text(json.dumps(config))
        if forward_loop is not None:
            amax = observe(model, forward_loop)
            options["input_scales"] = pathlib.Path(folder, "amax.json")
            options["input_scales"].write_text(json.dumps({f"{name}.input_amax": value for name, value in amax.items()}))
        model.save_pretrained(source)
        if tokenizer is not None:
            tokenizer.save_pretrained(source)
        return jobs.quantize_checkpoint(source, out, recipe, arithmetic=arithmetic, **options)
