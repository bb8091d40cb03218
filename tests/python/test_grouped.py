"""scaled_grouped_mm against float64 products of the decoded operands."""

import ml_dtypes
import numpy as np
import pytest

import nibble

K, N, GROUPS, ENDS = 256, 96, 4, [40, 40, 171, 200]
FORMATS = {"nvfp4": ["BlockWise1x16", "TensorWise"], "mxfp8": ["BlockWise1x32"], "mxfp4": ["BlockWise1x32"], "fp8_row": ["RowWise"],
           "fp8": ["TensorWise"]}


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(format, x, swizzled):
    """Codes, scales by kind, and decoded numbers of the groups of x [groups, rows, k] or of a list of matrices."""
    each = [nibble.quantize(np.ascontiguousarray(m), format) for m in x]
    kinds = FORMATS[format]
    scales = []
    for kind in kinds:
        if kind == "TensorWise":
            scales.append(np.array([q.tensor_scale for q in each], np.float32))
        elif kind == "RowWise":
            scales.append([q.float_scales.reshape(-1) for q in each])
        else:
            scales.append([nibble.swizzle(q.block_scales) if swizzled else q.block_scales for q in each])
    codes = [q.codes if format.endswith("4") else q.codes.view(ml_dtypes.float8_e4m3fn) for q in each]
    return codes, scales, [q.dequantize().astype(np.float64) for q in each], kinds


def check(got, exact, bounds):
    assert np.all(np.abs(got - exact) <= bounds + np.abs(exact) * 2.0**-23)


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_in_groups(format, swizzled):
    starts = [0, *ENDS[:-1]]
    x = numbers(ENDS[-1], K)
    parts = [x[s:e] for s, e in zip(starts, ENDS) if e > s]
    codes, scales, decoded, kinds = operands(format, parts, swizzled)
    b_codes, b_scales, b_decoded, _ = operands(format, numbers(GROUPS, N, K, seed=1), swizzled)
    swizzles = ["SWIZZLE_32_4_4" if swizzled and "Block" in kind else "NO_SWIZZLE" for kind in kinds]
    present = [g for g in range(GROUPS) if ENDS[g] > starts[g]]
    a_scales = []
    for kind, value in zip(kinds, scales):
        if kind == "TensorWise":
            full = np.ones(GROUPS, np.float32)
            full[present] = value
            a_scales.append(full)
        else:
            a_scales.append(np.concatenate([v.reshape(-1) if swizzled and "Block" in kind else v for v in value]))
    b_all = [v if kind == "TensorWise" else np.stack(v) for kind, v in zip(kinds, b_scales)]
    got = nibble.scaled_grouped_mm(np.concatenate(codes), np.stack(b_codes).transpose(0, 2, 1), a_scales, kinds, b_all, kinds, swizzles,
                                   swizzles, offs=np.array(ENDS, np.int32), output_dtype="float32")
    assert got.shape == (ENDS[-1], N)
    for g, a in zip(present, decoded):
        exact = a @ b_decoded[g].T
        check(got[starts[g]:ENDS[g]], exact, K * 2.0**-22 * (np.abs(a) @ np.abs(b_decoded[g].T)))


@pytest.mark.parametrize("format", ["nvfp4", "fp8_row"])
def test_stacks(format):
    a_codes, a_scales, a_decoded, kinds = operands(format, numbers(GROUPS, 33, K), False)
    b_codes, b_scales, b_decoded, _ = operands(format, numbers(GROUPS, N, K, seed=1), False)
    stacked = lambda scales: [v if kind == "TensorWise" else np.stack(v) for kind, v in zip(kinds, scales)]
    got = nibble.scaled_grouped_mm(np.stack(a_codes), np.stack(b_codes).transpose(0, 2, 1), stacked(a_scales), kinds, stacked(b_scales),
                                   kinds, output_dtype="float32")
    for g in range(GROUPS):
        check(got[g], a_decoded[g] @ b_decoded[g].T, K * 2.0**-22 * (np.abs(a_decoded[g]) @ np.abs(b_decoded[g].T)))


def test_errors_name_the_argument():
    q = nibble.quantize(numbers(8, K), "fp8_row")
    a = q.codes.view(ml_dtypes.float8_e4m3fn)
    b = np.stack([a, a]).transpose(0, 2, 1)
    scales = q.float_scales.reshape(-1)
    call = lambda **more: nibble.scaled_grouped_mm(a, b, scales, "RowWise", np.stack([scales, scales]), "RowWise", **more)
    with pytest.raises(nibble.UsageError, match="ends of 2 groups"):
        call()
    with pytest.raises(nibble.ShapeError, match="do not divide 8 rows"):
        call(offs=[4, 9])
    with pytest.raises(nibble.UsageError, match="bias"):
        call(offs=[4, 8], bias=scales)
    with pytest.raises(nibble.ShapeError, match="give .rows, k."):
        nibble.scaled_grouped_mm(a, a, scales, "RowWise", scales, "RowWise")
