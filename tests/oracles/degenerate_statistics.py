"""Runs every calibrated recipe on degenerate models, whose statistics are zero, singular or missing. No job may stop.

    degenerate_statistics.py build/cpu/nibble

The table CASES has the models, RECIPES the jobs. Every job must end with status 0 and write a checkpoint that `nibble
verify` accepts. Its report has the kinds of gaps that the case names, with one line of each on stderr, and its input
scales are those that Model Optimizer writes (1/448, 1).
"""
import concurrent.futures
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

HIDDEN, INNER, KV, VOCAB, EXPERTS = 64, 96, 32, 64, 4
rng = random.Random(7)


def bf16(values):
    out = bytearray()
    for v in values:
        (u,) = struct.unpack("<I", struct.pack("<f", v))
        out += struct.pack("<H", ((u + 0x7FFF + ((u >> 16) & 1)) >> 16) & 0xFFFF)
    return bytes(out)


def save(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def load(folder):
    out = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(n))
            for name, e in header.items():
                if name != "__metadata__":
                    f.seek(8 + n + e["data_offsets"][0])
                    out[name] = (e["dtype"], e["shape"], f.read(e["data_offsets"][1] - e["data_offsets"][0]))
    return out


def floats(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def model(experts):
    """Returns tensor name -> (rows, columns, values)."""
    def matrix(rows, cols):
        return rows, cols, [rng.gauss(0, 0.05) for _ in range(rows * cols)]

    t = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN)}
    for layer in range(2):
        p = f"model.layers.{layer}."
        t[p + "input_layernorm.weight"] = t[p + "post_attention_layernorm.weight"] = (HIDDEN, 0, [1.0] * HIDDEN)
        for name, rows in (("q", HIDDEN), ("k", KV), ("v", KV), ("o", HIDDEN)):
            t[f"{p}self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN)
        if experts:
            for name in ("q", "k"):
                t[f"{p}self_attn.{name}_norm.weight"] = (16, 0, [1.0] * 16)
            t[p + "mlp.gate.weight"] = matrix(EXPERTS, HIDDEN)
        for m in [f"mlp.experts.{e}." for e in range(EXPERTS)] if experts else ["mlp."]:
            for name, rows, cols in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
                t[f"{p}{m}{name}_proj.weight"] = matrix(rows, cols)
    t["model.norm.weight"] = (HIDDEN, 0, [1.0] * HIDDEN)
    t["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    return t


def config(experts):
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
         "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 10000.0}
    if experts:
        c |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 1,
              "moe_intermediate_size": INNER, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False}
    return c


def fill(*names, value=0.0, rows=None):
    """Returns a change that sets tensors, or their first rows, to a value."""
    def change(t):
        for name in names:
            r, cols, values = t[name]
            n = (rows or r) * max(cols, 1)
            t[name] = r, cols, [value] * n + values[n:]
    return change


def scale(factor, names=None):
    def change(t):
        for name, (rows, cols, values) in t.items():
            if "_proj" in name and (names is None or any(n in name for n in names)):
                t[name] = rows, cols, [v * factor for v in values]
    return change


L = "model.layers.0."
# name, experts, change, kinds of gaps that some recipe must report, token ids
CASES = [
    ("plain", False, lambda t: None, set()),
    ("inputs of q, k and v are zero", False, fill(L + "input_layernorm.weight"), {"zero_inputs"}),
    ("inputs of o are zero", False, fill(L + "self_attn.v_proj.weight"), {"zero_inputs"}),
    ("inputs of down are zero", False, fill(L + "mlp.gate_proj.weight"), {"zero_inputs"}),
    ("keys are zero", False, fill(L + "self_attn.k_proj.weight"), set()),
    ("sixteen inputs of down are zero", False, fill(L + "mlp.up_proj.weight", rows=16), set()),
    ("seven inputs of down are zero", False, fill(L + "mlp.up_proj.weight", rows=7), set()),
    ("everything is zero", False, scale(0.0), {"zero_inputs"}),
    ("weights of 1e-30", False, scale(1e-28, ["mlp.up", "mlp.down"]), set()),
    ("weights of 1e-38", False, scale(1e-36, ["mlp.up", "self_attn.o"]), set()),
    ("an expert without tokens", True, lambda t: None, {"unseen_experts"}),
    ("an expert whose inner values are zero", True, fill(L + "mlp.experts.0.gate_proj.weight", L + "mlp.experts.1.gate_proj.weight"), set()),
    ("experts of zeros", True, scale(0.0, ["experts"]), {"zero_inputs"}),
]
RECIPES = ["nvfp4", "fp8", "nvfp4_gptq", "w4a16_nvfp4_gptq", "w4a16_nvfp4_local_hessian", "nvfp4_w4a4_weight_local_hessian", "nvfp4_awq_lite",
           "nvfp4_nibble_best", "nvfp4_four_over_six", "nvfp4_w4a4_weight_mse_fp8_sweep"]
OTHERS = ["mxfp4", "mxfp8", "fp8_per_channel_per_token", "fp8_2d_blockwise_weight_only", "nvfp4_mlp_weight_only"]
DEAD_BLOCK = "sixteen inputs of down are zero"


def sqnr(a, b):
    signal, noise = sum(x * x for x in a), sum((x - y) ** 2 for x, y in zip(a, b))
    return 10 * math.log10(signal / max(noise, 1e-300)) if signal else math.inf


def column_sqnr(source, folder, name, columns, width):
    a, b = floats(load(source)[name]), floats(load(folder)[name])
    keep = [j for j in range(len(a)) if j % width in columns]
    return sqnr([a[j] for j in keep], [b[j] for j in keep])


class Job:
    def __init__(self, program, work, case, recipe, flags):
        self.program, self.work, self.case, self.recipe, self.flags = program, work, case, recipe, flags
        self.problems = []

    def run(self, *words):
        return subprocess.run([self.program, *words], capture_output=True, text=True, cwd=self.work, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def __call__(self):
        name, experts, _, kinds = CASES[self.case]
        out = "q-" + "-".join([str(self.case), self.recipe, *self.flags]).replace("--", "")
        calib = ["--calib", f"{self.case}.safetensors"] if self.recipe in RECIPES else []
        done = self.run("quantize", str(self.case), "-o", out, "--recipe", self.recipe, "--quiet", "--threads", "1", *calib, *self.flags)
        where = f"{name}, {self.recipe} {' '.join(self.flags)}"
        if done.returncode != 0:
            return where, set(), [f"status {done.returncode}: {done.stderr.strip()}"]
        problems = []
        report = json.load(open(os.path.join(self.work, out, "nibble-report.json")))
        gaps = {g["kind"]: g for g in report["gaps"]}
        html = open(os.path.join(self.work, out, "nibble-report.html")).read()
        for gap in gaps.values():
            if gap["count"] < 1 or not gap["modules"]:
                problems.append(f"a gap without a count: {gap}")
            if done.stderr.count(gap["text"]) != 1:
                problems.append(f"stderr has {done.stderr.count(gap['text'])} lines of {gap['text']!r}: {done.stderr}")
            if gap["modules"][0] not in html:
                problems.append(f"the page does not name {gap['modules'][0]}")
        if name == "plain" and (gaps or done.stderr):
            problems.append(f"a plain model has remarks: {done.stderr}")
        if "no token" in done.stderr and not experts:
            problems.append("tokens reached every linear, stderr says otherwise: " + done.stderr)
        checked = self.run("verify", out)
        if checked.returncode != 0:
            problems.append("verify: " + checked.stdout + checked.stderr)
        zero = set(gaps["zero_inputs"]["modules"]) if "zero_inputs" in gaps else set()
        for tensor, value in load(os.path.join(self.work, out)).items():
            if not tensor.endswith("_scale") and not tensor.endswith("scale_2"):
                continue
            if value[0] == "F32" and not all(math.isfinite(v) and v > 0 for v in floats(value)):
                problems.append(f"{tensor} is not positive")
            if tensor.endswith("input_scale") and tensor.removesuffix(".input_scale") in zero:
                want = 1.0 if self.recipe == "fp8" else 1 / 448
                if abs(floats(value)[0] / want - 1) > 1e-6:
                    problems.append(f"{tensor} is {floats(value)[0]}, Model Optimizer writes {want}")
            if tensor.endswith(("k_scale", "v_scale")) and name == "keys are zero" and tensor.startswith(L + "self_attn.k") and floats(value) != [1.0]:
                problems.append(f"{tensor} is {floats(value)}")
        if name == DEAD_BLOCK and "local_hessian" in self.recipe:
            problems += self.dead_block(out, gaps)
        return where, set(gaps), problems

    def dead_block(self, out, gaps):
        """Model Optimizer makes the block zero; --compat none keeps it. Both are counted."""
        if gaps.get("blind_blocks", {}).get("count") != HIDDEN:
            return [f"{HIDDEN} blocks have inputs that are zero, the report says {gaps.get('blind_blocks')}"]
        done = self.run("convert", out, "-o", out + "-bf16", "--format", "bf16", "--quiet", *(["--drop", "input_scale"] if "w4a4" in self.recipe else []))
        if done.returncode != 0:
            return ["convert: " + done.stderr]
        db = column_sqnr(os.path.join(self.work, str(self.case)), os.path.join(self.work, out + "-bf16"), L + "mlp.down_proj.weight", range(16), INNER)
        kept = "none" in self.flags
        return [] if (db > 15 if kept else db < 3) else [f"SQNR of the block is {db:.1f} dB"]


def main():
    program = os.path.realpath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        for i, (name, experts, change, _) in enumerate(CASES):
            t = model(experts)
            change(t)
            os.makedirs(os.path.join(work, str(i)))
            json.dump(config(experts), open(os.path.join(work, str(i), "config.json"), "w"))
            save(os.path.join(work, str(i), "model.safetensors"),
                 {n: ("BF16", [r, c] if c else [r], bf16(v)) for n, (r, c, v) in t.items()})
            ids = [[5, 5, 5]] if experts else [[rng.randrange(3, VOCAB) for _ in range(24)] for _ in range(4)]
            save(os.path.join(work, f"{i}.safetensors"),
                 {"input_ids": ("I64", [len(ids), len(ids[0])], b"".join(struct.pack(f"<{len(r)}q", *r) for r in ids))})
        jobs = []
        for case, (name, experts, _, kinds) in enumerate(CASES):
            for recipe in RECIPES + OTHERS:
                jobs.append(Job(program, work, case, recipe, ["--kv", "fp8"] if recipe in ("nvfp4", "fp8") else []))
            for recipe in ("nvfp4", "fp8", "nvfp4_gptq", "w4a16_nvfp4_local_hessian", "nvfp4_w4a4_weight_mse_fp8_sweep", "nvfp4_nibble_best"):
                jobs.append(Job(program, work, case, recipe, ["--arithmetic", "true", "--compat", "none"]))
        found, bad = {}, 0
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for job, (where, gaps, problems) in zip(jobs, pool.map(lambda j: j(), jobs)):
                found.setdefault(job.case, set()).update(gaps)
                for problem in problems:
                    print(f"{where}: {problem}")
                bad += bool(problems)
        for case, (name, _, _, kinds) in enumerate(CASES):
            if not kinds <= found[case]:
                print(f"{name}: no recipe reports {kinds - found[case]}")
                bad += 1
        print(f"{len(jobs)} jobs, {bad} wrong; gaps: {sorted(set().union(*found.values()))}")
        return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
