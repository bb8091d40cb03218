"""Packs golden families into tests/data/golden/families.tar.gz for tests/model/families_test.cpp.

    pack_families.py SOURCE FAMILY...

SOURCE has one folder per family (config.json, model.safetensors, expect.safetensors: see tests/data/golden/README.md).
Every fifth position of the expected logits is kept, with the list of positions, because logits are most of the archive
and do not compress.
"""
import gzip
import io
import json
import pathlib
import struct
import sys
import tarfile

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "golden" / "families.tar.gz"
KEEP_EVERY = 5


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0] : 8 + length + t["data_offsets"][1]])
            for name, t in header.items()}


def write_safetensors(tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def expected(path):
    tensors = read_safetensors(path)
    dtype, (texts, length, vocabulary), logits = tensors["logits"]
    positions = list(range(KEEP_EVERY - 1, length, KEEP_EVERY))
    row = 4 * vocabulary
    kept = b"".join(logits[(b * length + p) * row : (b * length + p + 1) * row] for b in range(texts) for p in positions)
    return write_safetensors({"input_ids": tensors["input_ids"],
                              "logits": (dtype, [texts, len(positions), vocabulary], kept),
                              "positions": ("I64", [len(positions)], struct.pack(f"<{len(positions)}q", *positions))})


def main():
    source, families = pathlib.Path(sys.argv[1]), sorted(sys.argv[2:])
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for family in families:
            for name in ("config.json", "model.safetensors", "expect.safetensors"):
                path = source / family / name
                data = expected(path) if name.startswith("expect") else path.read_bytes()
                entry = tarfile.TarInfo(f"{family}/{name}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    with open(OUT, "wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as out:
        out.write(tar_bytes.getvalue())
    print(f"{OUT.name}: {len(families)} families, {OUT.stat().st_size} bytes")


main()
