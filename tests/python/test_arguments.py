"""Arguments of wrong types and shapes are errors of the package that name the argument; numbers may be of any library."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nibble

W = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
Q = nibble.quantize(W)
B = W.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("call,message", [
    (lambda: nibble.quantize(W, 7), "quantize: format has a value of a wrong type: 7"),
    (lambda: nibble.quantize(W, ["nvfp4"]), "quantize: format has a value of a wrong type"),
    (lambda: nibble.quantize(W, search=1), "quantize: search has a value of a wrong type"),
    (lambda: nibble.quantize(W, four_over_six="yes"), "quantize: four_over_six has a value of a wrong type"),
    (lambda: nibble.quantize(W, static_scales=np.zeros(2)), "quantize: static_scales has a value of a wrong type"),
    (lambda: nibble.quantize(W, arithmetic=None), "quantize: arithmetic has a value of a wrong type"),
    (lambda: nibble.quantize(W, amax="x"), "quantize: amax is not one number: 'x'"),
    (lambda: nibble.quantize(W, amax=np.ones(3)), "quantize: amax is not one number"),
    (lambda: nibble.quantize(W, rounding="stochastic", key="a"), "quantize: key is not a whole number: 'a'"),
    (lambda: nibble.quantize(W, hadamard="x"), "quantize: hadamard is not a whole number: 'x'"),
    (lambda: nibble.matmul(W, Q, inputs="fp8", input_scale="x"), "matmul: input_scale is not one number"),
    (lambda: nibble.unswizzle(np.zeros(512, np.uint8), "a", 1), "unswizzle: rows is not a whole number"),
    (lambda: nibble.quantize(np.zeros((4, 128), np.float32), "int4", rounding="stochastic", key=1), "is for 4-bit floats, not int4"),
    (lambda: nibble.quantize(np.zeros((4, 128), np.float32), "mxfp8", amax=1), "amax is for formats with a tensor scale, not mxfp8"),
    (lambda: nibble.verify([]), "verify: give at least one path"),
])
def test_wrong_options_are_usage_errors(call, message):
    with pytest.raises(nibble.UsageError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("call,message", [
    (lambda: nibble.quantize(None), "quantize: x is a NoneType"),
    (lambda: nibble.matmul(None, Q), "matmul: x is a NoneType"),
    (lambda: nibble.matmul(W, None), "matmul: w is a NoneType"),
    (lambda: nibble.swizzle(None), "swizzle: scales is a NoneType"),
    (lambda: nibble.unswizzle(None, 1, 1), "unswizzle: scales is a NoneType"),
    (lambda: nibble.pack(None), "pack: codes is a NoneType"),
    (lambda: nibble.unpack(None), "unpack: packed is a NoneType"),
    (lambda: nibble.Packed(None), "w is a NoneType"),
    (lambda: nibble.QuantTensor("fp8", None), "QuantTensor: codes is a NoneType"),
    (lambda: nibble.QuantTensor.from_modelopt(None, W), "from_modelopt: weight is a NoneType"),
    (lambda: nibble.QuantTensor.from_compressed_tensors(3, 4), "weight is a int"),
    (lambda: nibble.quantize(W, out=3), "quantize: out is a int; give a QuantTensor"),
    (lambda: nibble.dequantize(W), "dequantize: q is a ndarray; give a QuantTensor"),
    (lambda: nibble.scaled_mm(3, W, 1, "TensorWise", 1, "TensorWise"), "scaled_mm: mat_a is a int"),
    (lambda: nibble.scaled_mm(Q.codes, None, 1, "TensorWise", 1, "TensorWise"), "scaled_mm: mat_b is a NoneType"),
])
def test_objects_that_are_no_arrays_are_dtype_errors(call, message):
    with pytest.raises(nibble.DTypeError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("number", [3, 3.0, np.float32(3), np.float64(3), np.array(3.0), np.array([3.0], np.float32)], ids=repr)
def test_numbers_of_any_library(number):
    assert nibble.quantize(W, amax=number).tensor_scale == nibble.quantize(W, amax=3.0).tensor_scale
    assert nibble.QuantTensor("nvfp4", Q.codes, Q.block_scales, tensor_scale=number).tensor_scale == 3
    # compressed-tensors stores the global scale with the shape [1].
    assert nibble.QuantTensor.from_compressed_tensors(Q.codes, Q.block_scales, number).tensor_scale == np.float32(1) / np.float32(3)
    assert np.array_equal(nibble.matmul(W, Q, inputs="fp8", input_scale=number), nibble.matmul(W, Q, inputs="fp8", input_scale=3.0))


def test_a_number_that_changes_is_read_again():
    amax = np.array(1.0)
    first = nibble.quantize(W, amax=amax).tensor_scale
    amax[()] = 2
    assert nibble.quantize(W, amax=amax).tensor_scale == 2 * first


def test_results_have_the_type_of_the_argument():
    bf16 = np.dtype(ml_dtypes.bfloat16)
    for x in (W, B, W.astype(np.float16)):
        assert nibble.fake_quantize(x).dtype == x.dtype
        assert nibble.matmul(x, Q).dtype == x.dtype
    assert np.array_equal(nibble.fake_quantize(B), nibble.quantize(B).dequantize().astype(bf16))
    assert Q.dequantize(ml_dtypes.bfloat16).dtype == Q.dequantize(bf16).dtype == bf16
    assert Q.dequantize("bfloat16").dtype == np.uint16  # the call names no type that numpy has
    out = np.empty(B.shape, bf16)
    assert Q.dequantize(bf16, out=out) is out


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_parts_of_any_shape_fit_or_are_refused(data):
    """Arrays of wrong sizes never reach a kernel."""
    format = data.draw(st.sampled_from(nibble.formats()))
    side = st.integers(0, 300)
    shape = data.draw(st.lists(side, max_size=3))
    codes = np.zeros(shape, np.uint8)
    block = data.draw(st.one_of(st.none(), st.lists(side, max_size=3).map(lambda s: np.zeros(s, np.uint8))))
    floats = data.draw(st.one_of(st.none(), st.lists(side, max_size=2).map(lambda s: np.zeros(s, np.float32))))
    swizzled = data.draw(st.booleans())
    try:
        q = nibble.QuantTensor(format, codes, block, float_scales=floats, swizzled=swizzled)
    except (nibble.ShapeError, nibble.UsageError):
        return
    assert q.dequantize().shape == q.shape
    q._repr_html_()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_products_of_any_shape_fit_or_are_refused(data):
    """Also with empty sides, strides, read-only operands and other types."""
    format = data.draw(st.sampled_from(nibble.formats()))
    rows, outputs, blocks = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 140)), data.draw(st.integers(0, 2))
    inputs = blocks * 128
    w = nibble.quantize(np.random.default_rng(1).standard_normal((outputs, inputs)).astype(np.float32), format)
    dtype = data.draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
    wrong = data.draw(st.sampled_from([0, 0, 0, 16]))
    x = np.random.default_rng(2).standard_normal((2 * rows, 2 * (inputs + wrong))).astype(dtype)[::2, ::data.draw(st.sampled_from([2, -2]))]
    x.flags.writeable = False
    if wrong:
        with pytest.raises(nibble.ShapeError):
            nibble.matmul(x, w)
        return
    y = nibble.matmul(x, w, dtype="float32")
    assert y.shape == (rows, outputs)
    exact = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
    assert np.allclose(y, exact, rtol=1e-4, atol=1e-3)


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(0, 300), blocks=st.integers(0, 20))
def test_scales_of_any_shape_swizzle_there_and_back(rows, blocks):
    scales = np.random.default_rng(rows).integers(0, 256, (rows, blocks), np.uint8)
    there = nibble.swizzle(scales)
    assert np.array_equal(nibble.unswizzle(there, rows, blocks), scales)
    with pytest.raises(nibble.ShapeError, match="bytes are needed"):
        nibble.unswizzle(there, rows + 128, blocks + 1)
