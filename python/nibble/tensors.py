"""Quantized tensors and products, on arrays of any library. No element is touched in Python."""

from __future__ import annotations

import sys
from operator import index
from typing import Any, Generic

from . import _core
from ._types import T
from .errors import DTypeError, ShapeError, UsageError

__all__ = [
    "Packed", "QuantTensor", "dequantize", "fake_quantize", "formats", "matmul", "pack", "quantize", "scaled_grouped_mm",
    "scaled_mm", "swizzle", "unpack", "unswizzle",
]

_specs: dict[Any, Any] = {}
_dtype_names: dict[Any, str] = {}
_ROTATION = 0xD7E8  # the signs of TransformerEngine's 16-point Hadamard transform


def formats() -> list[str]:
    """Names of the formats that quantize() knows."""
    return list(_core.format_names())


def _spec(key: tuple[Any, ...]) -> Any:
    try:
        if len(_specs) > 256:
            _specs.clear()
        spec = _specs[key] = _core.Spec(*key)
        return spec
    except TypeError:
        names = ("format", "search", "four_over_six", "static_scales", "arithmetic")
        bad = next(i for i, name in enumerate(names) if type(key[i]) is not (bool if name.endswith("s") or name.endswith("six") else str))
        raise UsageError(f"quantize: {names[bad]} has a value of a wrong type: {key[bad]!r}") from None


class QuantTensor(Generic[T]):
    """A quantized tensor: codes, block scales and the tensor scale, in arrays of the library that x came from.

    codes         uint8 [..., cols / 2], the even column in the low half (4-bit formats); float8_e4m3fn [..., cols]
    block_scales  [..., cols / block]: float8_e4m3fn (nvfp4) or float8_e8m0fnu (mxfp4, mxfp8); None elsewhere
    float_scales  float32 [rows, 1] (fp8_row), per 128 x 128 tile (fp8_block128) or [rows, cols / 128] (int4); None elsewhere
    tensor_scale  a float that multiplies every number (nvfp4, fp8); 1 elsewhere

    numpy has no 8-bit floats: there, all bytes are uint8 (`x.view(ml_dtypes.float8_e4m3fn)` reads them).
    """

    __slots__ = ("_native", "__weakref__")

    def __init__(self, format: str, codes: T, block_scales: T | None = None, *, tensor_scale: Any = 1.0,
                 float_scales: T | None = None, swizzled: bool = False) -> None:
        """Wraps existing arrays without a copy. swizzled: block_scales are in the 128 x 4 layout."""
        self._native = _core.wrap(format, codes, block_scales, float_scales, _number("QuantTensor", "tensor_scale", tensor_scale), swizzled)

    @property
    def format(self) -> str:
        return self._native.format

    @property
    def shape(self) -> tuple[int, ...]:
        return self._native.shape

    @property
    def codes(self) -> T:
        return self._native.codes

    @property
    def block_scales(self) -> T | None:
        return self._native.block_scales

    @property
    def float_scales(self) -> T | None:
        return self._native.float_scales

    @property
    def tensor_scale(self) -> float:
        return self._native.tensor_scale

    @property
    def bits(self) -> float:
        """Stored bits per number, scales included."""
        return self._native.bits

    def dequantize(self, dtype: str = "float32", *, out: T | None = None) -> T:
        """The numbers: code times scale in FP32, rounded once to dtype (float32, bfloat16 or float16)."""
        return _typed(_core.dequantize(self._native, _dtype_name(dtype), out), dtype)

    def swizzled(self) -> T:
        """The block scales in the 128 x 4 layout of Blackwell's matrix instructions, one-dimensional and padded."""
        if self.block_scales is None:
            raise UsageError(f"swizzled: {self.format} has no block scales")
        return _core.swizzle(_two_dimensional(self.block_scales))

    def to_scaled_mm(self) -> dict[str, Any]:
        """Operand and scales for scaled_mm(): {"mat", "scale", "recipe", "swizzle"}, with torch's types on torch tensors.

        `torch.nn.functional.scaled_mm` takes the same values; `mat` of the right operand is passed as `mat.t()`.
        """
        if self.format == "int4":
            raise UsageError("to_scaled_mm: scaled_mm has no integers of 4 bits; use matmul()")
        typed = _typed_codes(self.codes, self.format)
        if self.format in ("nvfp4", "nvfp4_bs32"):
            if self.format == "nvfp4_bs32":
                raise UsageError("to_scaled_mm: scaled_mm has no blocks of 32 with E4M3 scales; use nvfp4")
            return {"mat": typed, "scale": [self.swizzled(), _scalar_like(self.codes, self.tensor_scale)],
                    "recipe": ["BlockWise1x16", "TensorWise"], "swizzle": ["SWIZZLE_32_4_4", "NO_SWIZZLE"]}
        if self.format in ("mxfp4", "mxfp8"):
            return {"mat": typed, "scale": [self.swizzled()], "recipe": ["BlockWise1x32"], "swizzle": ["SWIZZLE_32_4_4"]}
        if self.format == "fp8":
            return {"mat": typed, "scale": [_scalar_like(self.codes, self.tensor_scale)], "recipe": ["TensorWise"],
                    "swizzle": ["NO_SWIZZLE"]}
        recipe = "RowWise" if self.format == "fp8_row" else "BlockWise128x128"
        return {"mat": typed, "scale": [self.float_scales], "recipe": [recipe], "swizzle": ["NO_SWIZZLE"]}

    @classmethod
    def from_modelopt(cls, weight: T, weight_scale: T | None = None, weight_scale_2: Any = None) -> "QuantTensor[T]":
        """Tensors of a Model Optimizer checkpoint: `weight`, `weight_scale`, `weight_scale_2`, without a copy.

        NVFP4 has all three; FP8 has a scalar `weight_scale`; MXFP8 has E8M0 bytes per 32.
        """
        packed = _item_size(weight) == 1 and _is_packed(weight, "from_modelopt: weight")
        if weight_scale_2 is not None:
            return cls("nvfp4", weight, weight_scale, tensor_scale=weight_scale_2)
        if weight_scale is None:
            raise UsageError("from_modelopt: weight_scale is missing")
        if _count(weight_scale) == 1:
            return cls("fp8", weight, tensor_scale=weight_scale)
        if packed and _count(weight_scale) * 16 == _count(weight):
            return cls("mxfp4", weight, weight_scale)
        if _count(weight_scale) * 32 == _count(weight):
            return cls("mxfp8", weight, weight_scale)
        if _count(weight_scale) == _rows(weight):
            return cls("fp8_row", weight, float_scales=weight_scale)
        return cls("fp8_block128", weight, float_scales=weight_scale)

    @classmethod
    def from_compressed_tensors(cls, weight_packed: T, weight_scale: T, weight_global_scale: Any = None) -> "QuantTensor[T]":
        """Tensors of a compressed-tensors checkpoint. Its global scale divides, so the tensor scale is 1 / it."""
        if weight_global_scale is not None:
            # The reciprocal is formed in FP32, as readers of the format do.
            return cls("nvfp4", weight_packed, weight_scale, tensor_scale=_core.reciprocal(_number("from_compressed_tensors", "weight_global_scale", weight_global_scale)))
        return cls.from_modelopt(weight_packed, weight_scale)

    def __repr__(self) -> str:
        return f"QuantTensor({self.format}, shape={tuple(self.shape)}, tensor_scale={self.tensor_scale:.6g}, {self.bits:.3f} bits)"

    def _repr_html_(self) -> str:
        from ._html import quant_tensor_html

        return quant_tensor_html(self)

    def __reduce__(self) -> Any:
        return _restore, (self.format, self.codes, self.block_scales, self.float_scales, self.tensor_scale)


def _restore(format: str, codes: Any, block_scales: Any, float_scales: Any, tensor_scale: float) -> QuantTensor[Any]:
    return QuantTensor(format, codes, block_scales, tensor_scale=tensor_scale, float_scales=float_scales)


_new = QuantTensor.__new__


def quantize(x: T, format: str = "nvfp4", *, amax: float | None = None, search: str = "max", four_over_six: bool = False,
             static_scales: bool = False, arithmetic: str = "reciprocal", rounding: str = "nearest", key: int | None = None,
             hadamard: bool | int | None = None, out: QuantTensor[T] | None = None) -> QuantTensor[T]:
    """Quantizes an array of float32, bfloat16, float16 or FP8 along its last dimension. The array is not copied.

    format         nvfp4, nvfp4_bs32, mxfp4, mxfp8, fp8, fp8_row, fp8_block128, int4: formats()
    amax           the largest magnitude that the tensor scale is made for; None: that of x
    search         how scales are chosen: max, mse (multipliers 0.25 to 4), sweep (126 E4M3 values; nvfp4)
    four_over_six  nvfp4: blocks whose error is smaller that way map their maximum to 4 in place of 6
    static_scales  nvfp4: the rules of calibrated block maxima (Model Optimizer's static weights)
    arithmetic     reciprocal: the bytes of Model Optimizer on a GPU; true: on a CPU
    rounding       nearest, or stochastic (4-bit formats) with a key: the same key gives the same codes
    hadamard       rotates every 16 numbers first (random Hadamard transform). True: TransformerEngine's signs; a number:
                   its 16 bits are the signs
    out            a QuantTensor of the same format and shape, which is written and returned
    """
    if amax is not None:
        amax = _number("quantize", "amax", amax)
    if rounding == "stochastic":
        if key is None:
            raise UsageError("quantize: rounding='stochastic' needs a key, a whole number that decides all draws")
        key = _whole("quantize", "key", key)
        if not 0 <= key < 1 << 64:
            raise UsageError(f"quantize: key {key} is not in [0, 2^64)")
    elif rounding != "nearest":
        raise UsageError(f"quantize: rounding '{rounding}' is unknown; choices: nearest, stochastic")
    elif key is not None:
        raise UsageError("quantize: key is for rounding='stochastic'")
    rotation = None if hadamard is None or hadamard is False else _ROTATION if hadamard is True else _whole("quantize", "hadamard", hadamard)
    if rotation is not None and not 0 <= rotation < 1 << 16:
        raise UsageError(f"quantize: hadamard {rotation} is not in [0, 2^16); its bits are 16 signs")
    try:  # a small array takes a microsecond: the usual case makes no call
        spec = _specs[format, search, four_over_six, static_scales, arithmetic, amax, key, rotation]
    except (KeyError, TypeError):
        spec = _spec((format, search, four_over_six, static_scales, arithmetic, amax, key, rotation))
    if out is not None:
        if not isinstance(out, QuantTensor):
            raise DTypeError(f"quantize: out is a {type(out).__name__}; give a QuantTensor")
        _core.quantize(x, spec, out._native)
        return out
    q = _new(QuantTensor)
    q._native = _core.quantize(x, spec, None)
    return q


def dequantize(q: QuantTensor[T], dtype: str = "float32", *, out: T | None = None) -> T:
    """The numbers of a quantized tensor; QuantTensor.dequantize."""
    if not isinstance(q, QuantTensor):
        raise DTypeError(f"dequantize: q is a {type(q).__name__}; give a QuantTensor")
    return q.dequantize(dtype, out=out)


def fake_quantize(x: T, format: str = "nvfp4", *, dtype: str | None = None, **options: Any) -> T:
    """Quantizes and decodes at once: the numbers that a quantized x stands for, in x's type or dtype."""
    return quantize(x, format, **options).dequantize(dtype or _result_dtype_of(x))


def swizzle(scales: T) -> T:
    """Block scales [rows, blocks] in the 128 x 4 layout, one-dimensional, padded with zeros."""
    return _core.swizzle(scales)


def unswizzle(scales: T, rows: int, blocks: int) -> T:
    """The block scales [rows, blocks] of the 128 x 4 layout."""
    return _core.unswizzle(scales, _whole("unswizzle", "rows", rows), _whole("unswizzle", "blocks", blocks))


def pack(codes: T) -> T:
    """4-bit codes, one a byte, as two a byte with the even one in the low half."""
    return _core.pack(codes)


def unpack(packed: T) -> T:
    """The 4-bit codes of packed bytes, one a byte."""
    return _core.unpack(packed)


class Packed:
    """A weight [outputs, inputs] in the layout of the CPU kernels, for many products: a QuantTensor or an array."""

    __slots__ = ("_native",)

    def __init__(self, w: Any) -> None:
        self._native = _core.Packed(w._native if isinstance(w, QuantTensor) else w)

    @property
    def shape(self) -> tuple[int, int]:
        return self._native.shape

    @property
    def nbytes(self) -> int:
        return self._native.nbytes


def matmul(x: Any, w: Any, *, bias: Any = None, inputs: str | None = None, input_scale: float | None = None,
           dtype: str | None = None, out: Any = None) -> Any:
    """x @ w.T + bias. x: an array or a QuantTensor [..., inputs]; w: a QuantTensor, Packed or array [outputs, inputs].

    inputs: quantizes each row of x first, with the bits of `nibble serve`: nvfp4 or fp8 with the input_scale of a checkpoint,
    fp8_token, fp8_group128, mxfp8 or mxfp4 without.
    Decoded operands are multiplied in FP32, in the order of sums that docs/formats.md gives. dtype: float32, bfloat16 or
    float16; None: that of x.
    """
    if dtype is None:
        dtype = "float32" if isinstance(x, QuantTensor) else _result_dtype_of(x)
    if input_scale is not None:
        input_scale = _number("matmul", "input_scale", input_scale)
    return _typed(_core.matmul(x._native if isinstance(x, QuantTensor) else x, w._native if isinstance(w, (QuantTensor, Packed)) else w,
                               bias, inputs, input_scale, _dtype_name(dtype), out), dtype)


def scaled_mm(mat_a: T, mat_b: T | Packed, scale_a: Any, scale_recipe_a: Any, scale_b: Any = None, scale_recipe_b: Any = None, swizzle_a: Any = None,
              swizzle_b: Any = None, bias: Any = None, output_dtype: Any = "bfloat16", contraction_dim: Any = (),
              use_fast_accum: bool = False) -> T:
    """The arguments of torch.nn.functional.scaled_mm on a CPU: mat_a [m, k] times mat_b [k, n], which is column-major.

    Recipes: TensorWise, RowWise, BlockWise1x16 (with TensorWise), BlockWise1x32, BlockWise1x128, BlockWise128x128, as torch's
    enumeration or as words. Scales may be linear or swizzled. Every element of the result is the product of the decoded
    operands up to k * 2^-22 of the sum of magnitudes, then rounded to output_dtype. use_fast_accum changes nothing.
    mat_b may be a Packed weight, which has its scales: where it serves many products, it is not packed again.
    """
    if contraction_dim not in ((), [], None):
        raise UsageError("scaled_mm: contraction_dim is not supported; pass mat_b column-major")
    a = _operand("mat_a", mat_a, scale_a, scale_recipe_a, swizzle_a)
    b = mat_b._native if isinstance(mat_b, Packed) else _operand("mat_b", _transposed(mat_b), scale_b, scale_recipe_b, swizzle_b)
    return _typed(_core.matmul(a, b, bias, None, None, _dtype_name(output_dtype), None), output_dtype)


def scaled_grouped_mm(mat_a: T, mat_b: T, scale_a: Any, scale_recipe_a: Any, scale_b: Any, scale_recipe_b: Any,
                      swizzle_a: Any = None, swizzle_b: Any = None, bias: Any = None, offs: Any = None,
                      output_dtype: Any = "bfloat16", contraction_dim: Any = (), use_fast_accum: bool = False) -> T:
    """The arguments of torch.nn.functional.scaled_grouped_mm on a CPU: a product for each group, as for experts.

    mat_a [rows, k] with offs [groups], the end of each group's rows, times mat_b [groups, k, n] gives [rows, n]; mat_a
    [groups, m, k] without offs gives [groups, m, n]. Each mat_b is column-major. Scales of rows and blocks have the rows of
    their matrix; swizzled scales begin a new tile of 128 rows with each group, as torch wants them. A tensor scale is one
    number or one for each group. Every element has the precision of scaled_mm().
    """
    if contraction_dim not in ((), [], None):
        raise UsageError("scaled_grouped_mm: contraction_dim is not supported; pass each mat_b column-major")
    if bias is not None:
        raise UsageError("scaled_grouped_mm: bias is not supported")
    a, b = _sized(mat_a), _sized(mat_b)
    if len(b.shape) != 3 or len(a.shape) not in (2, 3):
        raise ShapeError(f"scaled_grouped_mm: mat_a is {tuple(a.shape)} and mat_b {tuple(b.shape)}; "
                         "give [rows, k] or [groups, m, k], and [groups, k, n]")
    groups, n = b.shape[0], b.shape[2]
    if len(a.shape) == 3:
        if offs is not None:
            raise UsageError("scaled_grouped_mm: offs are for a mat_a of two dimensions")
        if a.shape[0] != groups:
            raise ShapeError(f"scaled_grouped_mm: mat_a has {a.shape[0]} groups, mat_b {groups}")
        out = _empty_like(a, (groups, a.shape[1], n), _dtype_name(output_dtype))
        parts = [(g, a[g], out[g], a.shape[1]) for g in range(groups)]
    else:
        if offs is None or len(offs) != groups:
            raise UsageError(f"scaled_grouped_mm: offs must hold the ends of {groups} groups")
        ends = [int(end) for end in offs]
        begins = [0, *ends[:-1]]
        if any(e < s for s, e in zip(begins, ends)) or ends[-1] != a.shape[0]:
            raise ShapeError(f"scaled_grouped_mm: offs {ends} do not divide {a.shape[0]} rows")
        out = _empty_like(a, (a.shape[0], n), _dtype_name(output_dtype))
        parts = [(g, a[s:e], out[s:e], e - s) for g, (s, e) in enumerate(zip(begins, ends))]
    take_a = _group_scales("mat_a", scale_a, scale_recipe_a, swizzle_a, [rows for _, _, _, rows in parts], len(a.shape) == 3)
    take_b = _group_scales("mat_b", scale_b, scale_recipe_b, swizzle_b, [n] * groups, True)
    for g, part, result, rows in parts:
        if rows:
            left = _operand("mat_a", part, take_a[g], scale_recipe_a, swizzle_a)
            right = _operand("mat_b", _transposed(b[g]), take_b[g], scale_recipe_b, swizzle_b)
            _core.matmul(left, right, None, None, None, _dtype_name(output_dtype), result)
    return out


# ---- glue ----------------------------------------------------------------------------------------------------------


def _word(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "name", str(value))


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    return [_word(v) for v in value] if isinstance(value, (list, tuple)) else [_word(value)]


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype
    try:
        return _dtype_names[dtype]
    except (KeyError, TypeError):
        name = (getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)).removeprefix("torch.")
    if getattr(dtype, "__hash__", None) is not None and len(_dtype_names) < 256:
        _dtype_names[dtype] = name
    return name


def _result_dtype_of(x: Any) -> Any:
    """The type of a result that is as x: x's own where it is a type of results, else float32."""
    dtype = getattr(x, "dtype", "float32")
    return dtype if _dtype_name(dtype) in ("float32", "bfloat16", "float16") else "float32"


def _typed(result: Any, dtype: Any) -> Any:
    """A result of numpy in bfloat16, which numpy has as uint16, as the type of ml_dtypes that the caller named or gave."""
    if isinstance(dtype, str) or _dtype_name(dtype) != "bfloat16" or _dtype_name(getattr(result, "dtype", "")) != "uint16":
        return result
    return result.view(dtype)


def _number(function: str, name: str, value: Any) -> float:
    if type(value) is float:
        return value
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: of torch, for many elements
        raise UsageError(f"{function}: {name} is not one number: {value!r:.80}") from None


def _whole(function: str, name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise UsageError(f"{function}: {name} is not a whole number: {value!r:.80}") from None


def _item_size(x: Any) -> int:
    size = getattr(x, "itemsize", None)
    return size if isinstance(size, int) else 1


def _is_packed(x: Any, what: str) -> bool:
    if not hasattr(x, "dtype"):
        raise DTypeError(f"{what} is a {type(x).__name__}; give an array")
    return _dtype_name(x.dtype) in ("uint8", "float4_e2m1fn_x2", "int8")


def _count(x: Any) -> int:
    n = 1
    for size in getattr(x, "shape", ()):
        n *= size
    return n


def _rows(x: Any) -> int:
    return _count(x) // x.shape[-1] if len(x.shape) else 1


def _two_dimensional(x: Any) -> Any:
    return x if len(x.shape) == 2 else x.reshape(-1, x.shape[-1])


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _sized(x: Any) -> Any:
    """The array; 4-bit tensors of torch as bytes, which can be sliced."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise DTypeError(f"scaled_grouped_mm: a matrix is a {type(x).__name__}; give torch tensors or numpy arrays")
    return x.view(sys.modules["torch"].uint8) if _dtype_name(x.dtype) == "float4_e2m1fn_x2" else x


def _empty_like(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of x's library: torch's, or numpy's, which has no bfloat16 and gets uint16."""
    if _is_torch(x):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=x.device)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(x, numpy.ndarray):
        raise DTypeError(f"scaled_grouped_mm: mat_a is a {type(x).__name__}; give torch tensors or numpy arrays")
    return numpy.empty(shape, "uint16" if dtype == "bfloat16" else dtype)


def _group_scales(name: str, scales: Any, recipes: Any, swizzles: Any, rows: list[int], stacked: bool) -> list[list[Any]]:
    """The scales of each group. rows: of each group; stacked: the first dimension of the scales is the groups."""
    kinds = _words(recipes)
    values = list(scales) if isinstance(scales, (list, tuple)) else [scales]
    layouts = _words(swizzles) or ["NO_SWIZZLE"] * len(kinds)
    if len(values) != len(kinds) or len(layouts) != len(kinds):
        raise UsageError(f"scaled_grouped_mm: {name} has {len(values)} scales, {len(kinds)} recipes and {len(layouts)} swizzles")
    out: list[list[Any]] = [[] for _ in rows]
    for value, kind, layout in zip(values, kinds, layouts):
        if kind == "TensorWise":
            one = _count(value) == 1
            flat = value.reshape(-1) if hasattr(value, "reshape") else value
            for g in range(len(rows)):
                out[g].append(float(value) if one else float(flat[g]))
            continue
        if kind not in ("RowWise", "BlockWise1x16", "BlockWise1x32", "BlockWise1x128"):
            raise UsageError(f"scaled_grouped_mm: the recipe {kind} of {name} is not supported")
        if stacked and len(value.shape) > 1 and value.shape[0] == len(rows):
            for g in range(len(rows)):
                out[g].append(value[g].reshape(-1) if layout != "NO_SWIZZLE" else value[g])
            continue
        if layout != "NO_SWIZZLE":
            flat, tiles = value.reshape(-1), [(r + 127) // 128 for r in rows]
            step = _count(flat) // max(sum(tiles), 1)  # bytes of 128 rows
            starts = [sum(tiles[:g]) * step for g in range(len(rows))]
            for g, start in enumerate(starts):
                out[g].append(flat[start:start + tiles[g] * step])
            continue
        starts = [sum(rows[:g]) for g in range(len(rows))]
        for g, start in enumerate(starts):
            out[g].append(value[start:start + rows[g]])
    return out


def _typed_codes(codes: Any, format: str) -> Any:
    """Codes of 4-bit formats with torch's type for them."""
    if _is_torch(codes) and format in ("nvfp4", "nvfp4_bs32", "mxfp4"):
        return codes.view(sys.modules["torch"].float4_e2m1fn_x2)
    return codes


def _scalar_like(x: Any, value: float) -> Any:
    if _is_torch(x):
        torch = sys.modules["torch"]
        return torch.tensor(value, dtype=torch.float32)
    return value


def _transposed(x: Any) -> Any:
    if not hasattr(x, "shape"):
        raise DTypeError(f"scaled_mm: mat_b is a {type(x).__name__}; give an array")
    if len(x.shape) != 2:
        raise ShapeError(f"scaled_mm: mat_b has shape {tuple(x.shape)}; give a matrix [k, n], column-major")
    # torch's 4-bit tensors have no strided views of other libraries' kind; t() exists for all of them.
    return x.t() if hasattr(x, "t") else x.T


def _operand(name: str, codes: Any, scales: Any, recipes: Any, swizzles: Any) -> Any:
    """The native tensor of one operand of scaled_mm."""
    kinds = _words(recipes)
    values = list(scales) if isinstance(scales, (list, tuple)) else [scales]
    layouts = _words(swizzles) or ["NO_SWIZZLE"] * len(kinds)
    if len(values) != len(kinds) or len(layouts) != len(kinds):
        raise UsageError(f"scaled_mm: {name} has {len(values)} scales, {len(kinds)} recipes and {len(layouts)} swizzles")
    if any(layout not in ("NO_SWIZZLE", "SWIZZLE_32_4_4") for layout in layouts):
        raise UsageError(f"scaled_mm: the swizzle of {name} is {layouts}; NO_SWIZZLE and SWIZZLE_32_4_4 are supported")
    swizzled = layouts[0] == "SWIZZLE_32_4_4"
    packed = _is_packed(codes, f"scaled_mm: {name}")
    if kinds in (["BlockWise1x16"], ["BlockWise1x16", "TensorWise"]):
        return _core.wrap("nvfp4", codes, values[0], None, _number("scaled_mm", f"the tensor scale of {name}", values[1]) if len(values) > 1 else 1.0, swizzled)
    if kinds == ["BlockWise1x32"]:
        return _core.wrap("mxfp4" if packed else "mxfp8", codes, values[0], None, 1.0, swizzled)
    if swizzled:
        raise UsageError(f"scaled_mm: {kinds[0]} scales of {name} are not swizzled")
    if kinds == ["TensorWise"]:
        return _core.wrap("fp8", codes, None, None, _number("scaled_mm", f"the scale of {name}", values[0]), False)
    if kinds == ["RowWise"]:
        return _core.wrap("fp8_row", codes, None, values[0], 1.0, False)
    if kinds == ["BlockWise128x128"]:
        return _core.wrap("fp8_block128", codes, None, values[0], 1.0, False)
    if kinds == ["BlockWise1x128"]:
        return _core.from_tiles(codes, values[0], 1)
    raise UsageError(f"scaled_mm: the recipe {kinds} of {name} is not supported")
