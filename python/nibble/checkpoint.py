"""Checkpoints as mappings from names to tensors, of every format that nibble reads. Nothing is read before it is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import _core
from ._types import Path
from .errors import UsageError
from .tensors import QuantTensor

__all__ = ["Checkpoint", "TensorInfo", "open"]


@dataclass
class TensorInfo:
    """A tensor of a checkpoint. shape is that of the numbers, also where two are stored in a byte."""

    name: str
    shape: tuple[int, ...]
    format: str  # "none": not quantized
    dtype: str  # type of plain tensors as stored, of quantized ones as they decode
    stored_type: str
    stored_bytes: int
    activation: str
    input_scale: float | None
    file: str

    @property
    def quantized(self) -> bool:
        return self.format != "none"


class Checkpoint(Mapping[str, TensorInfo]):
    """An open checkpoint: a Hugging Face folder (BF16, Model Optimizer, compressed-tensors, FP8, MXFP4) or a .gguf file.

    Iterating gives names, indexing TensorInfo; tensor() reads the numbers and quant() the codes and scales. `framework`:
    numpy, torch (alias pt), or None for memoryviews.
    """

    def __init__(self, path: Path, framework: str | None = "numpy") -> None:
        framework = {"np": "numpy", "pt": "torch"}.get(framework or "", framework)
        if framework not in ("numpy", "torch", None):
            raise UsageError(f"open: framework '{framework}' is unknown; choices: numpy, torch, None")
        self._native = _core.open_checkpoint(os.fspath(path))
        self._framework = framework
        self._names: list[str] = self._native.names()

    def __getitem__(self, name: str) -> TensorInfo:
        return TensorInfo(**self._native.info(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def config(self) -> dict[str, Any]:
        """config.json without its quantization; of GGUF made from the metadata."""
        return json.loads(self._native.config)

    @property
    def dialect(self) -> str:
        return self._native.dialect

    @property
    def kv_cache(self) -> str:
        return self._native.kv

    def metadata(self) -> dict[str, str]:
        """Dialect and KV cache format, as safetensors' safe_open has metadata."""
        return {"dialect": self.dialect, "kv_cache": self.kv_cache}

    def tensor(self, name: str, *, rows: slice | None = None, dtype: str | None = None) -> Any:
        """The numbers of a tensor: plain ones as stored, quantized ones decoded to dtype (float32 if it is not given)."""
        info = self[name]
        begin, end = _range(rows, info.shape[0] if info.shape else 1)
        shape = (end - begin, *info.shape[1:]) if info.shape else ()
        if info.quantized:
            q = self._quant(name, info, begin, end)
            return q.dequantize(dtype or "float32")
        data, stored = self._native.plain(name, begin, end)
        array = self._array(data, stored, shape)
        if dtype is None or dtype == stored:
            return array
        if self._framework == "torch":
            import torch

            return array.to(getattr(torch, dtype))
        raise UsageError(f"tensor: {name} is stored in {stored}; conversion to {dtype} needs framework='torch'")

    get_tensor = tensor

    def get_slice(self, name: str) -> "_Slice":
        """Rows by indexing: get_slice(name)[a:b], as safetensors' safe_open."""
        return _Slice(self, name)

    def quant(self, name: str, *, rows: slice | None = None) -> QuantTensor[Any]:
        """Codes and scales of a quantized tensor, bit for bit, in nibble's layout."""
        info = self[name]
        begin, end = _range(rows, info.shape[0])
        return self._quant(name, info, begin, end)

    def _quant(self, name: str, info: TensorInfo, begin: int, end: int) -> QuantTensor[Any]:
        format, codes, block_scales, float_scales, tensor_scale = self._native.quant(name, begin, end)
        rows, cols = end - begin, 1
        for n in info.shape[1:]:
            cols *= n
        packed = format in ("nvfp4", "nvfp4_bs32", "mxfp4", "int4")
        blocks = None
        if block_scales is not None:
            scale_type = "float8_e8m0fnu" if format.startswith("mx") else "float8_e4m3fn"
            blocks = self._array(block_scales, scale_type, (rows, len(block_scales) // max(rows, 1)), raw=True)
        floats = None
        if float_scales is not None:
            count = len(float_scales) // 4
            across = 1 if format == "fp8_row" else -(-cols // 128)
            floats = self._array(float_scales, "float32", (count // across, across))
        return QuantTensor(format, self._array(codes, "uint8" if packed else "float8_e4m3fn", (rows, cols // 2 if packed else cols),
                                               raw=True), blocks, float_scales=floats, tensor_scale=tensor_scale)

    def _array(self, data: bytearray, dtype: str, shape: tuple[int, ...], raw: bool = False) -> Any:
        if self._framework == "torch":
            import torch

            if not data:
                return torch.empty(shape, dtype=getattr(torch, dtype))
            return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape)
        if self._framework == "numpy":
            import numpy as np

            name = dtype
            if dtype.startswith(("float8", "bfloat16")):
                name = "uint16" if dtype == "bfloat16" else "uint8"
                if not raw:
                    try:
                        import ml_dtypes

                        name = getattr(ml_dtypes, dtype)
                    except ImportError:
                        pass
            return np.frombuffer(data, dtype=name).reshape(shape)
        code: Any = {"float32": "f", "float64": "d", "int64": "q", "int32": "i", "int16": "h", "uint16": "H", "bfloat16": "H",
                "float16": "H", "int8": "b"}.get(dtype, "B")
        view = memoryview(data)
        return view.cast("B").cast(code, shape) if shape and all(shape) else view

    def __repr__(self) -> str:
        return f"Checkpoint({self._native.path!r}, {self.dialect}, {len(self)} tensors)"


class _Slice:
    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint, self._name = checkpoint, name

    def get_shape(self) -> list[int]:
        return list(self._checkpoint[self._name].shape)

    def __getitem__(self, rows: slice) -> Any:
        if not isinstance(rows, slice):
            raise UsageError("get_slice: rows are sliced with [a:b]")
        return self._checkpoint.tensor(self._name, rows=rows)


def _range(rows: slice | None, total: int) -> tuple[int, int]:
    begin, end, step = (rows or slice(None)).indices(total)
    if step != 1:
        raise UsageError("rows are read without steps")
    return begin, max(begin, end)


def open(path: Path, framework: str | None = "numpy") -> Checkpoint:
    """Opens a checkpoint: a folder or a .gguf file."""
    return Checkpoint(path, framework)
