"""Runs `nibble inspect`, `verify` and `convert --format bf16` on tiny models of a hundred model types saved by
transformers: all must be accepted, and the converted tensors must equal the source's byte for byte (stacks of
experts one by one).

    test_model_types.py NIBBLE [NAME ...]
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError:
    sys.exit(77)

import model_types

transformers.logging.set_verbosity_error()
torch.set_num_threads(2)


def read(folder):
    """Returns name -> (dtype, shape, bytes) of all safetensors files."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, record in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = record["data_offsets"]
                tensors[name] = (record["dtype"], record["shape"], data[8 + size + begin : 8 + size + end])
    return tensors


def matrices(tensor):
    dtype, (experts, rows, columns), data = tensor
    array = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(experts, rows, columns)
    return list(array)


def stack_of(name):
    """Returns the module of the experts and the projection of a stack's name; None for another tensor."""
    module = name.removesuffix(".weight")
    parent, projection = module.rsplit(".", 1)
    holder = parent.rsplit(".", 1)[-1]
    if holder == "experts":
        return parent, projection
    granite = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}
    if holder == "block_sparse_moe" and projection in granite:
        return parent + ".experts", granite[projection]
    if holder == "moe":
        return parent + ".experts", projection
    return None


def unstacked(name, stack, made):
    """Checks that the experts of one stack, as nibble writes them, equal the stack's slices, transposed or not, gate
    before up.
    """
    experts, projection = stack_of(name)
    for e, whole in enumerate(matrices(stack)):
        parts = ["gate_proj", "up_proj"] if projection == "gate_up_proj" else [projection]
        found = []
        for part in parts:
            dtype, shape, data = made.pop(f"{experts}.{e}.{part}.weight")
            found.append(torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(shape))
        joined = torch.cat(found)
        if not (torch.equal(joined, whole) if joined.shape == whole.shape else torch.equal(joined, whole.T)):
            if not (whole.shape[0] == whole.shape[1] and torch.equal(joined, whole.T)):
                return f"{name}: expert {e} differs"
    return None


def differing(a, b):
    """Returns the keys of two configurations whose values differ."""
    return sorted(key for key in a.keys() | b.keys() if a.get(key, "absent") != b.get(key, "absent"))


def problem(nibble, name, work):
    folder, out = work / name, work / f"{name}-bf16"
    model_types.make(name, folder)
    for command in (["inspect", folder, "--summary"], ["verify", folder], ["convert", folder, "-o", out, "--format", "bf16", "--quiet"]):
        done = subprocess.run([nibble, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            return f"{command[0]}: {(done.stdout + done.stderr).strip()[-300:]}"
    source, made = read(folder), read(out)
    for key, tensor in source.items():
        if key in made:
            if made.pop(key) != tensor:
                return f"{key}: differs"
        elif len(tensor[1]) == 3 and stack_of(key):
            wrong = unstacked(key, tensor, made)
            if wrong:
                return wrong
        else:
            return f"{key}: lost"
    if made:
        return f"new tensors: {sorted(made)[:3]}"
    if json.loads((folder / "config.json").read_text()) != json.loads((out / "config.json").read_text()):
        return f"config.json differs: {differing(json.loads((folder / 'config.json').read_text()), json.loads((out / 'config.json').read_text()))}"
    return None


def main():
    nibble = str(pathlib.Path(sys.argv[1]).resolve())
    failures = 0
    names = sys.argv[2:] or model_types.TYPES
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            wrong = problem(nibble, name, pathlib.Path(work))
            if wrong:
                failures += 1
                print(f"{name}: {wrong}", flush=True)
    print(f"{len(names) - failures} of {len(names)} model types")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
