"""Products against numpy in float64, within the bound that scaled_mm states."""

import ml_dtypes
import numpy as np
import pytest

import nibble
from test_tensors import weights


def close(got, a, b, ulp, bias=0.0):
    """|got - a b^T| <= k * 2^-22 * |a| |b|^T, and one rounding to the result's type."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = a @ b.T + bias
    bound = a.shape[1] * 2.0**-22 * (np.abs(a) @ np.abs(b).T + np.abs(bias)) + np.abs(exact) * ulp
    return np.all(np.abs(got.astype(np.float64) - exact) <= bound)


@pytest.mark.parametrize("format", nibble.formats())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_of_every_format(format, dtype):
    x, w = weights((7, 256), np.float32), weights((130, 256), seed=1)
    bias = weights((130,), np.float32, seed=2)
    q = nibble.quantize(w, format)
    got = nibble.matmul(x, q, bias=bias, dtype=dtype)
    if dtype == "bfloat16":
        got = got.view(ml_dtypes.bfloat16)
    ulp = {"float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-10}[dtype]
    assert close(got, x, q.dequantize(), ulp, bias.astype(np.float64))
    packed = nibble.Packed(q)
    assert packed.shape == (130, 256)
    again = nibble.matmul(x, packed, bias=bias, dtype=dtype)
    assert np.array_equal(got.view(again.dtype), again)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8", "fp8", "fp8_row", "fp8_block128"])
def test_scaled_mm_is_the_product_of_the_decoded_operands(format):
    a = nibble.quantize(weights((128, 256)), format)
    b = nibble.quantize(weights((256, 256), seed=1), format)
    pa, pb = a.to_scaled_mm(), b.to_scaled_mm()
    typed = (lambda m: m) if "4" in format else (lambda m: m.view(ml_dtypes.float8_e4m3fn))
    got = nibble.scaled_mm(typed(pa["mat"]), typed(pb["mat"]).T, pa["scale"], pa["recipe"], pb["scale"], pb["recipe"],
                           pa["swizzle"], pb["swizzle"], output_dtype="float32")
    assert close(got, a.dequantize(), b.dequantize(), 2**-24)
    if a.block_scales is not None:
        linear = nibble.scaled_mm(typed(pa["mat"]), typed(pb["mat"]).T, [a.block_scales, *pa["scale"][1:]], pa["recipe"],
                                  [b.block_scales, *pb["scale"][1:]], pb["recipe"], output_dtype="float32")
        assert np.array_equal(got, linear)


def test_scaled_mm_takes_a_packed_weight():
    a, b = (nibble.quantize(np.random.default_rng(n).standard_normal((n, 256)).astype(np.float32)) for n in (32, 48))
    left, right = a.to_scaled_mm(), b.to_scaled_mm()
    operands = left["mat"], right["mat"].T, left["scale"], left["recipe"], right["scale"], right["recipe"], left["swizzle"], right["swizzle"]
    whole = nibble.scaled_mm(*operands, output_dtype="float32")
    packed = nibble.Packed(b)
    assert packed.shape == (48, 256)
    for _ in range(2):
        got = nibble.scaled_mm(left["mat"], packed, left["scale"], left["recipe"], swizzle_a=left["swizzle"], output_dtype="float32")
        assert np.array_equal(got, whole)


def test_products_without_inputs_are_the_bias():
    for w in (np.zeros((5, 0), np.float32), nibble.quantize(np.zeros((5, 0), np.float32)), nibble.Packed(np.zeros((5, 0), np.float32))):
        assert np.array_equal(nibble.matmul(np.zeros((3, 0), np.float32), w), np.zeros((3, 5)))
        assert np.array_equal(nibble.matmul(np.zeros((3, 0), np.float32), w, bias=np.arange(5, dtype=np.float32)), [np.arange(5)] * 3)


def test_groups_of_128():
    x, w = weights((5, 256), np.float32), weights((128, 256), seed=1)
    scales = np.abs(x.reshape(5, 2, 128)).max(-1).astype(np.float32) / 448
    codes = (x.reshape(5, 2, 128) / scales[..., None]).reshape(5, 256).astype(ml_dtypes.float8_e4m3fn)
    decoded = codes.astype(np.float32) * np.repeat(scales, 128, 1)
    q = nibble.quantize(w, "fp8_block128")
    got = nibble.scaled_mm(codes, q.codes.view(ml_dtypes.float8_e4m3fn).T, scales, "BlockWise1x128", q.float_scales,
                           "BlockWise128x128", output_dtype="float32")
    assert close(got, decoded, q.dequantize(), 2**-24)


def test_errors_of_products():
    x, q = weights((4, 64)), nibble.quantize(weights((8, 32)))
    with pytest.raises(nibble.ShapeError, match="64 columns, the weights have 32"):
        nibble.matmul(x, q)
    with pytest.raises(nibble.UsageError, match="contraction_dim"):
        nibble.scaled_mm(x, x, 1.0, "TensorWise", 1.0, "TensorWise", contraction_dim=(1,))
    with pytest.raises(nibble.UsageError, match="recipe"):
        nibble.scaled_mm(x.view(np.uint8), x.view(np.uint8).T, 1.0, "Other", 1.0, "TensorWise")
