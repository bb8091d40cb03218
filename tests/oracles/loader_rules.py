"""Reads a quantized folder like the loaders of vLLM, SGLang and TensorRT-LLM, and reports what they would not find.

    loader_rules.py EXPORT SOURCE

SOURCE is the unquantized checkpoint of EXPORT; its tensors define the model's modules. For each matrix the
configuration of EXPORT is resolved by the loaders' rules (excluded modules, algorithm, the parts of a fused module
together). This gives names, dtypes and shapes of the tensors that a loader needs. All of them must exist, and no
others; scalars must be usable; the parts of one engine matrix must share whatever exists once per matrix. Only the
layout is checked, nothing is computed. Rules: `modelopt` and `compressed-tensors` quantization configurations as those
loaders read them; both spellings of the former are read and must agree.

Exit status 0: a loader finds everything; 1: one line per problem. Lines that begin with "note:" name loaders that
refuse a format which the checkpoint states correctly. Needs only Python.
"""
import fnmatch
import json
import math
import pathlib
import re
import struct
import sys

FUSED = {"qkv": ["q_proj", "k_proj", "v_proj"], "gate_up": ["gate_proj", "up_proj"], "w13": ["w1", "w3"], "qkv_a": ["q_a_proj", "kv_a_proj_with_mqa"]}
# Algorithms that vLLM's and SGLang's Model Optimizer loaders know, in capitals; TensorRT-LLM reads the same strings.
KNOWN = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"}
BITS_4 = {"NVFP4", "W4A16_NVFP4", "MXFP4"}


class Folder:
    """Headers of all safetensors files of a folder; scalars are read on demand."""

    def __init__(self, path):
        self.path, self.tensors = pathlib.Path(path), {}
        index = self.path / "model.safetensors.index.json"
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
        for name in names:
            with open(self.path / name, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                for tensor, entry in json.loads(file.read(length)).items():
                    if tensor != "__metadata__":
                        self.tensors[tensor] = (entry["dtype"], entry["shape"], name, 8 + length + entry["data_offsets"][0])

    def json(self, name):
        path = self.path / name
        # Bare Infinity, used by published configurations of Mamba models, is accepted by Python's JSON.
        return json.loads(path.read_text()) if path.exists() else None

    def floats(self, name, count=1):
        _, _, file, offset = self.tensors[name]
        with open(self.path / file, "rb") as f:
            f.seek(offset)
            return struct.unpack(f"<{count}f", f.read(4 * count))


def parts_of(module):
    """Returns the parts of a fused module next to this one, including itself, or [module] for a module that stands
    alone.
    """
    parent, _, leaf = module.rpartition(".")
    for members in FUSED.values():
        if leaf in members:
            return [f"{parent}.{m}" for m in members]
    return [module]


def excluded(module, patterns):
    for pattern in patterns:
        if pattern == module or fnmatch.fnmatchcase(module, pattern):
            return True
        if pattern.endswith("*") and module == pattern[:-1]:
            return True
        # The name of a fused module stands for its parts.
        fused = pattern.rpartition(".")[2]
        if fused in ("qkv_proj", "gate_up_proj") and pattern.rpartition(".")[0] == module.rpartition(".")[0]:
            if module.rpartition(".")[2] in FUSED["qkv" if fused == "qkv_proj" else "gate_up"]:
                return True
    return False


# ---- Model Optimizer's configuration ------------------------------------------------------------------------------


def modelopt_view(algo, group_size, exclude, kv, layers):
    return {"algo": (algo or "").upper(), "group": group_size, "exclude": exclude or [], "kv": kv, "layers": layers or {}}


def from_hf_quant_config(document, problems):
    q = document["quantization"]
    if (q.get("quant_algo") or "").upper() in ("NVFP4", "W4A16_NVFP4"):
        problems += [f"hf_quant_config.json: NVFP4 loaders require the key {k}" for k in ("group_size", "kv_cache_quant_algo", "exclude_modules") if k not in q]
    return modelopt_view(q.get("quant_algo"), q.get("group_size"), q.get("exclude_modules"), q.get("kv_cache_quant_algo"), q.get("quantized_layers"))


def from_quantization_config(section, problems):
    if not str(section.get("quant_method", "")).startswith("modelopt"):
        problems.append("config.json: quant_method does not begin with 'modelopt'")
    group = section.get("group_size")
    for config in (section.get("config_groups") or {}).values():
        group = group or config["weights"].get("group_size")
    scheme = section.get("kv_cache_scheme")
    kv = "FP8" if isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float" else scheme
    return modelopt_view(section.get("quant_algo"), group, section.get("ignore"), kv, section.get("quantized_layers"))


def mixed_algo(module, layers, problems):
    """For MIXED_PRECISION: resolves the module's name, the parts of its fused group (which must agree), or a key below
    or above it.
    """
    found = {layers[m]["quant_algo"].upper() for m in parts_of(module) if m in layers}
    if len(found) > 1:
        problems.append(f"{module}: the parts of one matrix are {sorted(found)}")
    if module in layers:
        return layers[module]["quant_algo"].upper()
    if found:
        problems.append(f"{module}: its partners are quantized, it is not")
        return sorted(found)[0]
    if ".experts." in module:
        container = module.split(".experts.")[0] + ".experts"
        if container in layers:
            return layers[container]["quant_algo"].upper()
    below = [k for k in layers if k.startswith(module + ".")]
    return layers[below[0]]["quant_algo"].upper() if below else None


def modelopt_parts(algo, rows, cols):
    """Returns suffix -> (dtypes, allowed shapes) of one linear; F32 scalars have shape [] or [1]."""
    scalar = ({"F32"}, ([], [1]))
    tiles = [-(-rows // 128), -(-cols // 128)]
    return {
        "FP8": {"weight": ({"F8_E4M3"}, ([rows, cols],)), "weight_scale": scalar, "input_scale": scalar},
        "FP8_PER_CHANNEL_PER_TOKEN": {"weight": ({"F8_E4M3"}, ([rows, cols],)), "weight_scale": ({"F32"}, ([rows],))},
        "FP8_PB_WO": {"weight": ({"F8_E4M3"}, ([rows, cols],)),
                      "weight_scale": ({"F32"}, ([tiles[0], 1, tiles[1], 1],) + (([],) if tiles == [1, 1] else ()))},
        "NVFP4": {"weight": ({"U8"}, ([rows, cols // 2],)), "weight_scale": ({"F8_E4M3"}, ([rows, cols // 16],)), "weight_scale_2": scalar,
                  "input_scale": scalar},
        "W4A16_NVFP4": {"weight": ({"U8"}, ([rows, cols // 2],)), "weight_scale": ({"F8_E4M3"}, ([rows, cols // 16],)), "weight_scale_2": scalar},
        "MXFP8": {"weight": ({"F8_E4M3"}, ([rows, cols],)), "weight_scale": ({"U8"}, ([rows, cols // 32],))},
        "MXFP4": {"weight": ({"U8"}, ([rows, cols // 2],)), "weight_scale": ({"U8"}, ([rows, cols // 32],))},
    }.get(algo)


def check_modelopt(export, source, problems, notes):
    config, legacy = export.json("config.json"), export.json("hf_quant_config.json")
    if not config or "quantization_config" not in config or not legacy:
        problems.append("config.json with quantization_config and hf_quant_config.json must both be there")
        return set()
    view = from_quantization_config(config["quantization_config"], problems)
    other = from_hf_quant_config(legacy, problems)
    for key in ("algo", "kv", "layers"):
        if view[key] != other[key]:
            problems.append(f"config.json and hf_quant_config.json disagree on {key}: {view[key]} and {other[key]}")
    if sorted(view["exclude"]) != sorted(other["exclude"]):
        problems.append("config.json and hf_quant_config.json leave different modules alone")
    mixed = view["algo"] == "MIXED_PRECISION"
    algos = {layer["quant_algo"].upper() for layer in view["layers"].values()} if mixed else {view["algo"]}
    for algo in sorted(algos - KNOWN):
        notes.append(f"vLLM, SGLang and TensorRT-LLM have no Model Optimizer loader for '{algo}'")
    asked, of = set(), {}
    for module, rows, cols in source:
        if excluded(module, view["exclude"]):
            continue
        algo = mixed_algo(module, view["layers"], problems) if mixed else view["algo"]
        if algo is None:
            continue
        wanted = modelopt_parts(algo, rows, cols)
        if wanted is None:
            problems.append(f"{module}: unknown algorithm '{algo}': loaders would leave it unquantized")
            continue
        if algo in ("NVFP4", "W4A16_NVFP4") and cols % 16:
            problems.append(f"{module}: {cols} inputs do not divide into blocks of 16")
        if algo == "FP8_PB_WO" and (rows % 128 or cols % 128):
            notes.append(f"{module}: [{rows}, {cols}] is no whole number of 128 x 128 tiles, which vLLM asks for")
        of[module] = algo
        asked |= ask(export, module, wanted, problems)
    compare_fused(export, of, {"weight_scale_2": ("NVFP4", "W4A16_NVFP4"), "input_scale": ("NVFP4",)}, problems)
    if view["kv"] == "FP8":
        asked |= {t for t in export.tensors if t.endswith((".k_proj.k_scale", ".v_proj.v_scale"))}
    return asked


# ---- compressed-tensors -------------------------------------------------------------------------------------------

ARGS = {"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "observer", "observer_kwargs", "scale_dtype",
        "zp_dtype"}
SCHEMES = {  # (bits, strategy, group size) -> (algorithm, formats)
    (4, "tensor_group", 16): ("NVFP4", {"nvfp4-pack-quantized"}),
    (4, "group", 32): ("MXFP4", {"mxfp4-pack-quantized"}),
    (8, "group", 32): ("MXFP8", {"mxfp8-quantized"}),
    (8, "tensor", None): ("FP8", {"float-quantized", "naive-quantized"}),
    (8, "channel", None): ("FP8_ROW", {"float-quantized", "naive-quantized"}),
    (8, "block", None): ("FP8_BLOCK", {"float-quantized", "naive-quantized"}),
}


def scheme_of(group, outer, where, problems):
    weights, inputs = group["weights"], group.get("input_activations")
    for name, args in (("weights", weights), ("input_activations", inputs)):
        if args and set(args) - ARGS:
            problems.append(f"{where}: {name}: readers refuse the keys {sorted(set(args) - ARGS)}")
    if set(group) - {"targets", "weights", "input_activations", "output_activations", "format"}:
        problems.append(f"{where}: readers refuse keys they do not know")
    found = SCHEMES.get((weights["num_bits"], weights["strategy"], weights.get("group_size")))
    if not found or weights["type"] != "float" or not weights.get("symmetric", True) or weights.get("dynamic"):
        problems.append(f"{where}: no scheme of readers matches {weights}")
        return None
    algo, formats = found
    if group.get("format", outer) not in formats:
        problems.append(f"{where}: format {group.get('format', outer)}, but its weights are {algo}")
    if algo == "FP8_BLOCK" and weights.get("block_structure") != [128, 128]:
        problems.append(f"{where}: block_structure {weights.get('block_structure')}")
    return algo, bool(inputs) and (inputs.get("dynamic") in (False, "local"))


def compressed_parts(algo, stored_inputs, rows, cols):
    one = ({"F32"}, ([1],))
    packed = ({"U8"}, ([rows, cols // 2],))
    codes = ({"F8_E4M3"}, ([rows, cols],))
    parts = {
        "NVFP4": {"weight_packed": packed, "weight_scale": ({"F8_E4M3"}, ([rows, cols // 16],)), "weight_global_scale": one},
        "MXFP4": {"weight_packed": packed, "weight_scale": ({"U8"}, ([rows, cols // 32],))},
        "MXFP8": {"weight": codes, "weight_scale": ({"U8"}, ([rows, cols // 32],))},
        "FP8": {"weight": codes, "weight_scale": ({"F32", "BF16"}, ([1],))},
        "FP8_ROW": {"weight": codes, "weight_scale": ({"F32", "BF16"}, ([rows, 1],))},
        "FP8_BLOCK": {"weight": codes, "weight_scale": ({"F32", "BF16"}, ([-(-rows // 128), -(-cols // 128)],))},
    }[algo]
    if stored_inputs:
        parts["input_global_scale" if algo == "NVFP4" else "input_scale"] = one
    return parts


def named(module, patterns):
    """Returns 0 for a match by name, 1 by pattern, None for no match."""
    if module in patterns:
        return 0
    return 1 if any(p.startswith("re:") and re.match(p[3:], module) for p in patterns) else None


def check_compressed(export, source, section, problems, notes):
    if section.get("quantization_status") != "compressed":
        problems.append("quantization_status is not 'compressed'")
    groups = []
    for name, group in section["config_groups"].items():
        scheme = scheme_of(group, section.get("format"), f"config_groups: {name}", problems)
        if scheme:
            groups.append((group["targets"], scheme))
    asked, of = set(), {}
    for module, rows, cols in source:
        if named(module, section.get("ignore") or []) is not None or export.embedding(module):
            continue
        ranked = sorted((rank, i) for i, (targets, _) in enumerate(groups)
                        for rank in [named(module, targets) if named(module, targets) is not None else 2 if "Linear" in targets else None] if rank is not None)
        if not ranked:
            continue
        algo, stored_inputs = groups[ranked[0][1]][1]
        of[module] = algo
        asked |= ask(export, module, compressed_parts(algo, stored_inputs, rows, cols), problems)
    compare_fused(export, of, {"weight_global_scale": ("NVFP4",), "input_global_scale": ("NVFP4",)}, problems)
    if section.get("kv_cache_scheme"):
        asked |= {t for t in export.tensors if t.endswith((".k_scale", ".v_scale"))}
    return asked


# ---- Both ---------------------------------------------------------------------------------------------------------


def ask(export, module, wanted, problems):
    """Checks the tensors that a loader needs and reports missing ones."""
    for suffix, (dtypes, shapes) in wanted.items():
        name = f"{module}.{suffix}"
        if name not in export.tensors:
            problems.append(f"{name}: is missing; a loader asks for {'/'.join(sorted(dtypes))} {list(shapes[0])}")
            continue
        dtype, shape = export.tensors[name][:2]
        if dtype not in dtypes or shape not in [list(s) for s in shapes]:
            problems.append(f"{name}: is {dtype} {shape}, a loader asks for {'/'.join(sorted(dtypes))} {list(shapes[0])}")
        elif dtype == "F32":
            values = export.floats(name, math.prod(shape))
            if not all(math.isfinite(v) and v > 0 for v in values):
                problems.append(f"{name}: holds a scale that is not finite and positive")
    return {f"{module}.{suffix}" for suffix in wanted}


def compare_fused(export, algos, shared, problems):
    """One engine matrix has one algorithm, and with NVFP4 one scale of each kind: loaders use the largest and change
    nothing else.
    """
    for module in algos:
        parts = [m for m in parts_of(module) if m in algos]
        if parts[0] != module:
            continue
        if len({algos[m] for m in parts}) > 1:
            problems.append(f"{parts}: run as one matrix in different formats")
        for suffix, formats in shared.items():
            names = [f"{m}.{suffix}" for m in parts if algos[m] in formats and f"{m}.{suffix}" in export.tensors]
            if len({export.floats(n) for n in names}) > 1:
                problems.append(f"{parts}: {suffix} differs, engines would scale a part of the matrix wrongly")


def check(export_path, source_path):
    """Returns (problems, notes): what a loader would not find, and which loaders refuse the folder."""
    export, source, problems, notes = Folder(export_path), Folder(source_path), [], []
    export.embedding = lambda module: "embed" in module.rpartition(".")[2]
    matrices = [(name.removesuffix(".weight"), *shape) for name, (_, shape, *_) in sorted(source.tensors.items())
                if name.endswith(".weight") and len(shape) == 2]
    section = (export.json("config.json") or {}).get("quantization_config") or {}
    if section.get("quant_method") == "compressed-tensors":
        asked = check_compressed(export, matrices, section, problems, notes)
    else:
        asked = check_modelopt(export, matrices, problems, notes)
    # All other tensors must be the source's, and no further tensor may exist.
    quantized = {name.rpartition(".")[0] for name in asked}
    plain = {n for n in source.tensors if n.rpartition(".")[0] not in quantized or not n.endswith(".weight")}
    for name in sorted(plain):
        if name not in export.tensors:
            problems.append(f"{name}: is missing; the model needs it as it was")
        elif export.tensors[name][:2] != source.tensors[name][:2]:
            problems.append(f"{name}: is {export.tensors[name][:2]}, the model needs {source.tensors[name][:2]}")
    for name in sorted(set(export.tensors) - asked - plain):
        problems.append(f"{name}: no loader asks for it")
    return problems, notes


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    problems, notes = check(sys.argv[1], sys.argv[2])
    for note in notes:
        print(f"note: {note}")
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
