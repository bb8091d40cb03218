"""torch tensors in and out of the Python package: no copies, views that have no memory of their own, gradients, compiled graphs."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import nibble
import nibble.torch as nt

ROOT = pathlib.Path(__file__).resolve().parents[3]
FORMATS = nibble.formats()


def weights(*shape, dtype=torch.bfloat16, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g) * torch.randn(*shape, generator=g).exp()).to(dtype)


def same(a, b):
    assert torch.equal(a.codes.view(torch.uint8), b.codes.view(torch.uint8)) and a.tensor_scale == b.tensor_scale
    for x, y in ((a.block_scales, b.block_scales), (a.float_scales, b.float_scales)):
        assert (x is None) == (y is None) and (x is None or torch.equal(x.view(torch.uint8), y.view(torch.uint8)))


@pytest.mark.parametrize("format", FORMATS)
def test_results_are_torch_tensors_with_the_bytes_of_numpy(format):
    x = weights(128, 256, dtype=torch.float32)
    q, n = nibble.quantize(x, format), nibble.quantize(x.numpy(), format)
    assert isinstance(q.codes, torch.Tensor)
    assert q.codes.view(torch.uint8).numpy().tobytes() == n.codes.tobytes()
    if q.block_scales is not None:
        assert q.block_scales.dtype == (torch.float8_e8m0fnu if format.startswith("mx") else torch.float8_e4m3fn)
        assert q.block_scales.view(torch.uint8).numpy().tobytes() == n.block_scales.tobytes()
    assert torch.equal(q.dequantize(), torch.from_numpy(n.dequantize()))
    assert q.dequantize("bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_types_and_strides(dtype):
    x = weights(64, 128).to(dtype)
    same(nibble.quantize(x.t(), "mxfp8"), nibble.quantize(x.t().contiguous(), "mxfp8"))
    same(nibble.quantize(x[::2, 32:96]), nibble.quantize(x[::2, 32:96].contiguous()))
    same(nibble.quantize(x.reshape(4, 16, 128)[:, 3:7]), nibble.quantize(x.reshape(4, 16, 128)[:, 3:7].contiguous()))


def test_parameters_subclasses_and_inference_tensors():
    x = weights(16, 32)
    expected = nibble.quantize(x)
    same(nibble.quantize(torch.nn.Parameter(x)), expected)
    same(nibble.quantize(x.clone().requires_grad_()), expected)
    with torch.inference_mode():
        same(nibble.quantize(x.clone()), expected)


def test_views_without_memory_are_refused_by_name():
    c = torch.randn(4, 16, dtype=torch.complex64)
    with pytest.raises(nibble.DTypeError, match="negative view"):
        nibble.quantize(c.conj().imag)
    with pytest.raises(nibble.DTypeError, match="complex|conjugate"):
        nibble.quantize(c.conj())
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.randn(4, 16))
    with pytest.raises(nibble.DTypeError, match="FakeTensor"):
        nibble.quantize(fake)
    for bad in (torch.randn(4, 16).to_sparse(), torch.empty(4, 16, device="meta")):
        with pytest.raises((nibble.DTypeError, nibble.DeviceError)):
            nibble.quantize(bad)
    if torch.cuda.is_available():
        with pytest.raises(nibble.DeviceError, match="cuda:0.*CPU only"):
            nibble.quantize(torch.randn(4, 16, device="cuda"))


def test_flush_denormal_changes_nothing():
    x = weights(64, 256, dtype=torch.float32) * 1e-41
    expected = nibble.quantize(x, "mxfp8")
    assert torch.set_flush_denormal(True)
    try:
        same(nibble.quantize(x, "mxfp8"), expected)
    finally:
        torch.set_flush_denormal(False)


def test_out_refuses_gradients():
    q = nibble.quantize(weights(16, 32))
    with pytest.raises(nibble.UsageError, match="requires a gradient"):
        q.dequantize(out=torch.empty(16, 32, requires_grad=True))
    out = torch.empty(16, 32)
    assert q.dequantize(out=out) is out


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8", "fp8"])
def test_scaled_mm_takes_torchs_arguments(format):
    from torch.nn.functional import ScalingType, SwizzleType

    a, b = nibble.quantize(weights(128, 256), format), nibble.quantize(weights(64, 256, seed=1), format)
    pa, pb = a.to_scaled_mm(), b.to_scaled_mm()
    enums = lambda words, cls: [getattr(cls, w) for w in words]
    got = nibble.scaled_mm(pa["mat"], pb["mat"].t(), pa["scale"], enums(pa["recipe"], ScalingType), pb["scale"],
                           enums(pb["recipe"], ScalingType), enums(pa["swizzle"], SwizzleType), enums(pb["swizzle"], SwizzleType),
                           output_dtype=torch.float32)
    exact = a.dequantize().double() @ b.dequantize().double().T
    bound = 256 * 2.0**-22 * (a.dequantize().double().abs() @ b.dequantize().double().abs().T) + exact.abs() * 2.0**-23
    assert got.dtype == torch.float32 and bool(((got - exact).abs() <= bound).all())


def test_straight_through_gradients():
    x = weights(8, 32, dtype=torch.float32).requires_grad_()
    y = nt.fake_quantize(x, "nvfp4")
    assert torch.equal(y, nibble.quantize(x.detach()).dequantize())
    g = torch.randn(8, 32)
    y.backward(g)
    assert torch.equal(x.grad, g)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8", "fp8_row"])
def test_linear_matches_the_decoded_weights(format):
    torch.manual_seed(0)
    plain = torch.nn.Linear(256, 128)
    q = nt.Linear.from_linear(plain, format)
    x = torch.randn(5, 256, requires_grad=True)
    expected = torch.nn.functional.linear(x.detach(), q.quantized().dequantize(), plain.bias)
    with torch.no_grad():
        assert torch.allclose(q(x), expected, rtol=1e-5, atol=1e-5)
    q(x).sum().backward()
    assert torch.allclose(x.grad, q.quantized().dequantize().sum(0).expand(5, -1), rtol=1e-5, atol=1e-5)
    assert torch.allclose(q.bias.grad, torch.full((128,), 5.0))
    other = nt.Linear.from_linear(torch.nn.Linear(256, 128), format)
    other.load_state_dict(q.state_dict())
    with torch.no_grad():
        assert torch.equal(other(x), q(x))


def test_operators_survive_torch_compile():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    assert len(nt.convert_linears(model, "nvfp4")) == 2
    x = torch.randn(4, 64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.nibble.fake_quantize.default, (torch.randn(4, 32, requires_grad=True), "nvfp4"), test_utils=tests)


def test_quantization_aware_training_example():
    # One thread: torch's threads wait for each other for long on a machine that others use.
    done = subprocess.run([sys.executable, ROOT / "python/examples/qat.py"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    losses = [float(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0] / 2 and float(done.stdout.rsplit(" ", 1)[1]) < 1e-4


def test_no_memory_growth():
    x, out = weights(16, 32), nibble.quantize(weights(16, 32))

    def calls(n):
        for _ in range(n):
            nibble.quantize(x)
            nibble.quantize(x, out=out)

    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    calls(2000)
    before = resident()
    calls(50000)
    assert resident() - before < 4 << 20


def test_state_dict_of_a_checkpoint(tmp_path):
    subprocess.run([sys.executable, ROOT / "tests/oracles/random_model.py", tmp_path / "m", "--hidden", "64", "--inner", "128", "--layers",
                    "1", "--vocab", "64"], check=True, capture_output=True)
    nibble.quantize_checkpoint(tmp_path / "m", tmp_path / "q", "w4a16_nvfp4")
    from safetensors import safe_open

    checkpoint = nibble.open(tmp_path / "q", framework="pt")
    with safe_open(tmp_path / "q/model.safetensors", "pt") as f:
        for name, info in checkpoint.items():
            if info.quantized:
                q = checkpoint.quant(name)
                assert torch.equal(q.codes, f.get_tensor(name)) and torch.equal(
                    q.block_scales.view(torch.uint8), f.get_tensor(name + "_scale").view(torch.uint8))
                assert q.tensor_scale == float(f.get_tensor(name + "_scale_2"))
            else:
                assert torch.equal(checkpoint.tensor(name), f.get_tensor(name))
