"""Compares the reference safetensors library with nibble's reader and writer (tests/io/safetensors_oracle_test.cpp).

    safetensors_oracle.py check DIR

    DIR/ours.safetensors, DIR/ours.json   written by nibble: the library must read every tensor as in ours.json
                                          ({name: {dtype, shape, sha256}}) and write the identical file from them.
    DIR/theirs.safetensors, .json         written here, for nibble to read.

Exit status 0: all equal. Needs: safetensors, numpy, ml-dtypes.
"""

import hashlib
import json
import pathlib
import sys

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

# dtype name in files -> name in the library's TensorSpec.
SPEC_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64",
}  # fmt: skip


def describe(dtype, shape, data):
    return {"dtype": dtype, "shape": list(shape), "sha256": hashlib.sha256(data).hexdigest()}


def check_ours(folder):
    ours = (folder / "ours.safetensors").read_bytes()
    expected = json.loads((folder / "ours.json").read_text())
    read = {name: t for name, t in safetensors.deserialize(ours)}
    assert read.keys() == expected.keys(), read.keys() ^ expected.keys()
    for name, t in read.items():
        got = describe(t["dtype"], t["shape"], bytes(t["data"]))
        assert got == expected[name], (name, got, expected[name])

    assert {t["dtype"] for t in read.values()} == SPEC_NAMES.keys(), "ours.safetensors must hold every dtype"

    with safetensors.safe_open(folder / "ours.safetensors", framework="np") as f:
        metadata = f.metadata()
    specs, alive = {}, []
    for name, t in read.items():
        data = np.frombuffer(bytes(t["data"]) or b"\0", np.uint8)
        alive.append(data)
        specs[name] = safetensors.TensorSpec(
            dtype=SPEC_NAMES[t["dtype"]], shape=t["shape"], data_ptr=data.ctypes.data, data_len=len(t["data"])
        )
    again = bytes(safetensors.serialize(specs, metadata))
    assert again == ours, f"the library writes other bytes: {again[:200]} / {ours[:200]}"


def make_theirs(folder):
    rng = np.random.default_rng(1)
    types = [np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.float16, np.int32, np.uint32, np.float32, np.int64,
             np.uint64, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
             ml_dtypes.float8_e8m0fnu]  # fmt: skip
    tensors = {}
    for i, dtype in enumerate(types):
        for shape in [(), (0,), (1,), (5, 0, 3), (3, 7), (2, 3, 5)]:
            count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            raw = rng.integers(0, 2 if dtype is np.bool_ else 256, count, dtype=np.uint8)
            tensors[f"layer.{i}.\u00e9\"{len(tensors)}"] = raw.view(dtype).reshape(shape)
    safetensors.numpy.save_file(tensors, folder / "theirs.safetensors", metadata={"format": "np", "k": "v\n"})
    names = {spec: name for name, spec in SPEC_NAMES.items()}
    listing = {n: describe(names[t.dtype.name], t.shape, t.tobytes()) for n, t in tensors.items()}
    assert {t["dtype"] for t in listing.values()} == SPEC_NAMES.keys(), "theirs must hold every dtype"
    (folder / "theirs.json").write_text(json.dumps(listing))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "check":
        sys.exit(__doc__)
    target = pathlib.Path(sys.argv[2])
    check_ours(target)
    make_theirs(target)
