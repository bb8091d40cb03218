"""Quantized tensors against ml_dtypes and numpy, for every format, shape, stride and type of element."""

import gc
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nibble

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def weights(shape, dtype=ml_dtypes.bfloat16, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))).astype(dtype)


def e2m1(codes):
    """Values of 4-bit codes."""
    return np.where(codes & 8, -1, 1).astype(np.float32) * E2M1[codes & 7]


def unpacked(q):
    packed = np.asarray(q.codes)
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def oracle_nvfp4(x):
    """Model Optimizer's dynamic NVFP4 in numpy: codes, scale bytes, tensor scale."""
    w = x.astype(np.float32)
    blocks = w.reshape(w.shape[0], -1, 16)
    tensor = np.abs(w).max() * np.float32(1 / np.float32(6 * 448))
    tensor = np.float32(tensor if tensor > 0 else 1)
    scale = np.abs(blocks).max(-1) / (np.float32(6) * tensor)
    scale = np.where(scale == 0, np.float32(1), np.clip(scale, np.float32(2**-9), np.float32(448)))
    scale = scale.astype(ml_dtypes.float8_e4m3fn)
    quotient = blocks / (scale.astype(np.float32) * tensor)[..., None]
    codes = quotient.reshape(w.shape).astype(ml_dtypes.float4_e2m1fn)
    return codes.astype(np.float32), scale.view(np.uint8), tensor


def decoded(q):
    """The numbers of a quantized tensor in numpy, from its parts."""
    if q.format in ("nvfp4", "nvfp4_bs32", "mxfp4"):
        values = e2m1(unpacked(q))
    elif q.format == "int4":
        values = unpacked(q).astype(np.float32) - 8
    else:
        values = np.asarray(q.codes).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    rows, cols = values.shape
    if q.format in ("nvfp4", "nvfp4_bs32"):
        scale = np.asarray(q.block_scales).view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(q.tensor_scale)
    elif q.format in ("mxfp4", "mxfp8"):
        scale = np.asarray(q.block_scales).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    elif q.format == "fp8_block128":
        tiles = np.asarray(q.float_scales)
        return values * np.repeat(np.repeat(tiles, 128, 0), 128, 1)[:rows, :cols]
    elif q.format == "int4":
        scale = np.asarray(q.float_scales)
    elif q.format == "fp8_row":
        return values * np.asarray(q.float_scales)
    else:
        return values * np.float32(q.tensor_scale)
    return values * np.repeat(scale, cols // scale.shape[1], 1)


def same_parts(a, b):
    assert np.array_equal(np.asarray(a.codes), np.asarray(b.codes))
    assert a.tensor_scale == b.tensor_scale
    for x, y in ((a.block_scales, b.block_scales), (a.float_scales, b.float_scales)):
        assert (x is None) == (y is None)
        if x is not None:
            assert np.array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nvfp4_is_model_optimizers(dtype):
    x = weights((48, 256), dtype)
    x[3] = 0
    q = nibble.quantize(x)
    codes, scales, tensor = oracle_nvfp4(x)
    assert q.tensor_scale == tensor
    assert np.array_equal(q.block_scales, scales)
    assert np.array_equal(e2m1(unpacked(q)), codes)


@pytest.mark.parametrize("format", nibble.formats())
def test_dequantize_is_code_times_scale(format):
    x = weights((130, 256))
    q = nibble.quantize(x, format)
    assert q.shape == (130, 256) and q.format == format
    values = decoded(q)
    assert np.array_equal(q.dequantize(), values)
    assert np.array_equal(q.dequantize("bfloat16").view(ml_dtypes.bfloat16), values.astype(ml_dtypes.bfloat16))
    assert np.array_equal(q.dequantize("float16"), values.astype(np.float16))
    error = np.abs(values - x.astype(np.float32)).mean() / np.abs(x.astype(np.float32)).mean()
    assert error < {"int4": 0.35}.get(format, 0.25 if "4" in format else 0.05)  # int4: even steps, this data has long tails


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_strides_types_and_dimensions_change_nothing(data):
    format = data.draw(st.sampled_from([f for f in nibble.formats() if f not in ("fp8_block128", "int4")]))
    dtype = data.draw(st.sampled_from(FLOATS + [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]))
    lead = data.draw(st.lists(st.integers(0, 5), max_size=3))
    cols = 32 * data.draw(st.integers(1, 4))
    base = weights([2 * n + 1 for n in lead] + [3 * cols], dtype, seed=data.draw(st.integers(0, 9)))
    steps = [data.draw(st.sampled_from([1, 2, -1, -2])) for _ in lead] + [data.draw(st.sampled_from([1, 2, -1, 3]))]
    view = base[tuple(slice(None, None, s) for s in steps)][tuple(slice(0, n) for n in [*lead, cols])]
    if data.draw(st.booleans()):
        view.flags.writeable = False
    same_parts(nibble.quantize(view, format), nibble.quantize(np.ascontiguousarray(view), format))


def test_columns_of_a_transposed_view_are_quantized():
    x = weights((64, 96))
    same_parts(nibble.quantize(x.T, "mxfp8"), nibble.quantize(np.ascontiguousarray(x.T), "mxfp8"))


def test_searches_and_four_over_six_lower_the_error():
    x = weights((64, 512), np.float32)

    def error(**options):
        return float(((nibble.quantize(x, **options).dequantize() - x) ** 2).sum())

    nearest = error(static_scales=True)
    assert error(search="mse") < nearest
    assert error(search="sweep") <= error(search="mse") * 1.01
    assert error(four_over_six=True) < nearest


def test_a_given_amax_is_used():
    x = weights((16, 64))
    q = nibble.quantize(x, amax=1000.0)
    assert q.tensor_scale == np.float32(1000) * np.float32(1 / np.float32(2688))
    assert nibble.quantize(x, "fp8", amax=448.0).tensor_scale == 1


def test_stochastic_rounding_is_unbiased_and_keyed():
    x = np.full((64, 4096), 1.2, np.float32)
    x[:, ::16] = 6.0
    mean = nibble.quantize(x, rounding="stochastic", key=1, amax=2688.0).dequantize()[:, 1::16].mean()
    assert abs(mean - 1.2) < 0.005
    w = weights((32, 256))
    first, again, other = (nibble.quantize(w, rounding="stochastic", key=k) for k in (5, 5, 6))
    same_parts(first, again)
    assert not np.array_equal(first.codes, other.codes)
    neighbours = np.abs(e2m1(unpacked(first)) - e2m1(unpacked(nibble.quantize(w))))
    assert neighbours.max() <= 2 and np.array_equal(first.block_scales, nibble.quantize(w).block_scales)


def test_stochastic_codes_do_not_depend_on_panels_or_strides():
    x = weights((300, 1024))
    same_parts(nibble.quantize(x, "mxfp4", rounding="stochastic", key=3),
               nibble.quantize(np.asfortranarray(x), "mxfp4", rounding="stochastic", key=3))


def hadamard(n):
    return np.array([[1]]) if n == 1 else np.block([[hadamard(n // 2)] * 2, [hadamard(n // 2), -hadamard(n // 2)]])


def test_hadamard_rotates_blocks_of_16():
    x = weights((8, 64), np.float32)
    signs = np.array([-1 if 0xD7E8 >> i & 1 else 1 for i in range(16)])
    rotated = (x.reshape(8, -1, 16) * signs) @ hadamard(16) * 0.25
    expected = rotated.reshape(8, 64).astype(ml_dtypes.bfloat16)
    got = nibble.quantize(x, "mxfp8", hadamard=True).dequantize()
    assert np.abs(got - expected.astype(np.float32)).max() <= np.abs(expected.astype(np.float32)).max() / 16
    same = nibble.quantize(x, "mxfp8", hadamard=0xD7E8)
    assert np.array_equal(got, same.dequantize())


@pytest.mark.parametrize("rows,blocks", [(1, 1), (128, 4), (130, 9), (7, 64)])
def test_swizzle_is_the_128_by_4_layout(rows, blocks):
    scales = np.random.default_rng(1).integers(0, 256, (rows, blocks), np.uint8)
    got = nibble.swizzle(scales)
    padded = np.zeros((-(-rows // 128) * 128, -(-blocks // 4) * 4), np.uint8)
    padded[:rows, :blocks] = scales
    expected = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4).ravel()
    assert np.array_equal(got, expected)
    assert np.array_equal(nibble.unswizzle(got, rows, blocks), scales)


def test_pack_and_unpack():
    codes = np.random.default_rng(2).integers(0, 16, (5, 34), np.uint8)
    packed = nibble.pack(codes)
    assert np.array_equal(packed, codes[:, ::2] | codes[:, 1::2] << 4)
    assert np.array_equal(nibble.unpack(packed), codes)


def test_out_is_written_in_place():
    x, y = weights((32, 64), seed=1), weights((32, 64), seed=2)
    q = nibble.quantize(x)
    codes, scales = q.codes, q.block_scales
    assert nibble.quantize(y, out=q) is q
    assert q.codes is codes and q.block_scales is scales
    same_parts(q, nibble.quantize(y))
    target = np.empty((32, 64), np.float32)
    assert q.dequantize(out=target) is target and np.array_equal(target, decoded(q))


def test_inputs_are_not_copied_and_views_share_memory():
    x = weights((32, 64))
    q = nibble.quantize(x)
    again = nibble.QuantTensor("nvfp4", q.codes, q.block_scales, tensor_scale=q.tensor_scale)
    assert again.codes is q.codes
    q.codes[0, 0] ^= 7
    assert again.dequantize()[0, 0] == q.dequantize()[0, 0]


def test_model_optimizer_and_compressed_tensors_parts():
    x = weights((32, 64))
    q = nibble.quantize(x)
    scale = q.block_scales.view(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(nibble.QuantTensor.from_modelopt(q.codes, scale, np.float32(q.tensor_scale)).dequantize(), q.dequantize())
    divisor = np.array([1 / np.float32(q.tensor_scale)], np.float32)
    ct = nibble.QuantTensor.from_compressed_tensors(q.codes, q.block_scales, divisor[0])
    assert ct.tensor_scale == np.float32(1) / divisor[0]
    f = nibble.quantize(x, "fp8")
    codes = f.codes.view(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(nibble.QuantTensor.from_modelopt(codes, np.float32(f.tensor_scale)).dequantize(), f.dequantize())
    for format in ("mxfp8", "mxfp4", "fp8_row", "fp8_block128"):
        m = nibble.quantize(weights((128, 256)), format)
        scales = m.block_scales if m.block_scales is not None else m.float_scales
        read = nibble.QuantTensor.from_modelopt(m.codes if "4" in format else m.codes.view(ml_dtypes.float8_e4m3fn), scales)
        assert read.format == format and np.array_equal(read.dequantize(), m.dequantize())


def test_pickle_repr_and_html():
    q = nibble.quantize(weights((32, 64)))
    same_parts(q, pickle.loads(pickle.dumps(q)))
    assert "nvfp4" in repr(q) and "(32, 64)" in repr(q)
    html = q._repr_html_()
    assert html.count("<td title=") == 32 * 4 and "block scales" in html


def test_errors_name_argument_shape_and_reason():
    with pytest.raises(nibble.ShapeError, match=r"quantize: x is \(4, 90\) bfloat16; nvfp4 needs columns in multiples of 16"):
        nibble.quantize(weights((4, 90)))
    with pytest.raises(nibble.ShapeError, match="row 2, column 17"):
        x = weights((4, 64))
        x[2, 17] = np.inf
        nibble.quantize(x)
    with pytest.raises(nibble.DTypeError, match=r"x is \(4, 16\) int32; give float32"):
        nibble.quantize(np.zeros((4, 16), np.int32))
    with pytest.raises(nibble.DTypeError, match="x is a list"):
        nibble.quantize([1.0, 2.0])
    with pytest.raises(nibble.DTypeError, match="x has elements 'Zf'"):
        nibble.quantize(np.zeros((4, 16), np.complex64))
    with pytest.raises(nibble.DTypeError):
        nibble.quantize(np.zeros((4, 16), ">f4"))
    with pytest.raises(nibble.ShapeError, match="dimension"):
        nibble.quantize(np.float32(3))
    with pytest.raises(ValueError, match="nvfp5"):
        nibble.quantize(weights((4, 16)), "nvfp5")
    with pytest.raises(nibble.UsageError, match="needs a key"):
        nibble.quantize(weights((4, 16)), rounding="stochastic")
    with pytest.raises(nibble.UsageError, match="4-bit"):
        nibble.quantize(weights((4, 32)), "mxfp8", rounding="stochastic", key=1)
    with pytest.raises(nibble.UsageError, match="four_over_six is for nvfp4"):
        nibble.quantize(weights((4, 32)), "mxfp4", four_over_six=True)
    with pytest.raises(nibble.ShapeError, match="out is nvfp4"):
        nibble.quantize(weights((4, 32)), out=nibble.quantize(weights((4, 64))))
    with pytest.raises(nibble.ShapeError, match="64 bytes are needed"):
        nibble.QuantTensor("nvfp4", np.zeros((16, 32), np.uint8), np.zeros((16, 3), np.uint8))
    with pytest.raises(nibble.ShapeError, match="contiguous"):
        nibble.QuantTensor("fp8", np.zeros((16, 64), np.uint8)[:, ::2])


def test_exceptions_are_builtin_kinds_and_pickle():
    for name in nibble.errors.__all__:
        error = getattr(nibble, name)("text")
        assert isinstance(error, nibble.NibbleError)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and type(error).__module__ == "nibble.errors"
    assert issubclass(nibble.ShapeError, ValueError) and issubclass(nibble.DTypeError, TypeError)
    assert issubclass(nibble.FileError, OSError) and issubclass(nibble.OutOfMemoryError, MemoryError)


def test_empty_arrays():
    for shape in ((0, 64), (4, 0), (0, 0)):
        q = nibble.quantize(np.zeros(shape, np.float32))
        assert q.shape == shape and q.dequantize().shape == shape


def test_memory_views_work_without_numpy_arrays():
    import array

    x = memoryview(array.array("f", [float(i % 13) for i in range(64)]))
    q = nibble.quantize(x)
    expected = nibble.quantize(np.array([float(i % 13) for i in range(64)], np.float32))
    assert bytes(memoryview(q.codes)) == expected.codes.tobytes()


def test_flush_to_zero_of_the_caller_changes_nothing():
    import ctypes

    x = (weights((64, 256), np.float32) * np.float32(1e-41))
    expected = [nibble.quantize(x, f) for f in ("mxfp8", "nvfp4")]
    libm = ctypes.CDLL("libm.so.6")
    environment = ctypes.create_string_buffer(64)
    libm.fegetenv(environment)
    before = bytes(environment)
    mxcsr = int.from_bytes(before[28:32], "little") | 0x8040  # flush to zero, subnormals are zero
    libm.fesetenv(ctypes.create_string_buffer(before[:28] + mxcsr.to_bytes(4, "little") + before[32:], 64))
    try:
        got = [nibble.quantize(x, f) for f in ("mxfp8", "nvfp4")]
        after = ctypes.create_string_buffer(64)
        libm.fegetenv(after)
        assert int.from_bytes(bytes(after)[28:32], "little") & 0x8040 == 0x8040  # the caller's flags are back
    finally:
        libm.fesetenv(ctypes.create_string_buffer(before, 64))
    for a, b in zip(expected, got):
        same_parts(a, b)


def test_threads_get_the_same_bits():
    x = weights((512, 1024))
    expected = nibble.quantize(x, four_over_six=True)
    results = [None] * 8

    def work(i):
        for _ in range(3):
            results[i] = nibble.quantize(x, four_over_six=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for q in results:
        same_parts(q, expected)
    nibble.set_threads(1)
    same_parts(nibble.quantize(x, four_over_six=True), expected)
    nibble.set_threads(0)


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_no_memory_growth():
    x = weights((16, 32))
    q = nibble.quantize(x)
    bad = np.zeros((4, 15), np.float32)

    def calls(n):
        for i in range(n):
            nibble.quantize(x)
            nibble.quantize(x, out=q)
            q.dequantize("bfloat16")
            if i % 10 == 0:
                with pytest.raises(nibble.ShapeError):
                    nibble.quantize(bad)

    calls(2000)
    gc.collect()
    before = resident_bytes()
    calls(40000)
    gc.collect()
    assert resident_bytes() - before < 4 << 20
