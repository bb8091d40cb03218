"""Compares the perplexities of llama.cpp and nibble for the same GGUF files of every architecture that both support.

    tests/oracles/llamacpp_families.py NIBBLE TEXT WORK [--only FAMILY]      tools/check-llamacpp --families sets LLAMACPP_BIN

Models: those of tests/data/golden/models with the embedding, head and tokenizer of a real vocabulary, and a gemma3 and
a mistral with random weights. Their predictions are meaningless but far from uniform, so equal perplexities show equal
computations. Files: BF16 (`nibble convert`), NVFP4 and MXFP4 (`nibble quantize`). llama.cpp rounds activations to 8
bits if weights are quantized, so the tolerance is wider there. Needs numpy, ml-dtypes, safetensors.
"""
import argparse
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/data/golden"
FAMILIES = {  # family -> tokenizer
    "llama": "mistral-v1", "llama-rope3": "smollm2", "mistral": "mistral-v1", "mixtral": "mistral-v1", "qwen2": "qwen3", "qwen3": "qwen3",
    "qwen3_moe": "qwen3", "gemma3": "mistral-v1", "nemotron_h": "smollm2",
}
VOCABULARY = {"mistral-v1": 32000, "smollm2": 49152, "qwen3": 151936}
KINDS = ["bf16", "nvfp4", "mxfp4"]
UNITS = ["base_disable_all", "w4_nvfp4", "default_disabled_quantizers"]  # units of recipe w4a16_nvfp4
# Products that llama.cpp computes without a tensor scale stay in BF16 (nibble refuses them by name).
LEFT_OUT = {"qwen2": ["*mlp*"], "gemma3": ["*mlp*"], "nemotron_h": ["*latent_proj*"]}
BOUNDS = {"bf16": 0.005, "nvfp4": 0.05, "mxfp4": 0.05}  # tolerance of the ratio of perplexities


def bf16(x):
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16)


def random_matrix(rng, rows, cols, scale=1.0):
    return bf16(rng.standard_normal((rows, cols), np.float32) * (scale / np.sqrt(cols)))


def dense(rng, family):
    """Returns config and tensors of a model that the golden set lacks."""
    hidden, inner, heads, kv, dim, layers = 256, 512, 4, 2, 64, 4
    config = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv, "head_dim": dim, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 32,
              "rope_theta": 10000.0, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
    if family == "gemma3":
        config |= {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
                   "query_pre_attn_scalar": dim, "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "tie_word_embeddings": True,
                   "sliding_window_pattern": 6, "layer_types": ["sliding_attention"] * layers}
    else:
        config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "tie_word_embeddings": False,
                   "sliding_window": None}
    tensors = {}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    one = 0.0 if family == "gemma3" else 1.0
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows, cols in (("self_attn.q_proj", heads * dim, hidden), ("self_attn.k_proj", kv * dim, hidden),
                                 ("self_attn.v_proj", kv * dim, hidden), ("self_attn.o_proj", hidden, heads * dim),
                                 ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner)):
            tensors[p + name + ".weight"] = random_matrix(rng, rows, cols, 1.5)
        for name in norms:
            tensors[p + name + ".weight"] = bf16(one + 0.2 * rng.standard_normal(hidden))
        if family == "gemma3":
            for name in ("q_norm", "k_norm"):
                tensors[p + f"self_attn.{name}.weight"] = bf16(0.2 * rng.standard_normal(dim))
    tensors["model.norm.weight"] = bf16(one + 0.2 * rng.standard_normal(hidden))
    return config, tensors


def without_plain_mlps(config, tensors):
    """Removes plain MLP layers of nemotron_h, which llama.cpp confuses with experts."""
    pattern = config["hybrid_override_pattern"]
    kept = [i for i, kind in enumerate(pattern) if kind != "-"]
    out = {}
    for name, value in tensors.items():
        m = re.match(r"(.*\.layers\.)(\d+)(\..*)", name)
        if m and int(m[2]) not in kept:
            continue
        out[f"{m[1]}{kept.index(int(m[2]))}{m[3]}" if m else name] = value
    config["hybrid_override_pattern"] = "".join(pattern[i] for i in kept)
    config["num_hidden_layers"] = len(kept)
    config.pop("layers_block_type", None)
    return config, out


def experts_of_64(tensors):
    return {n: t[:64] if re.search(r"w[13]\.weight$", n) else t[:, :64] if n.endswith("w2.weight") else t for n, t in tensors.items()}


def make(family, folder):
    rng = np.random.default_rng(sum(family.encode()))
    golden = GOLDEN / "models" / family
    if golden.is_dir():
        config = json.loads((golden / "config.json").read_text())
        tensors = load_file(golden / "model.safetensors")
        if family == "mixtral":  # GGUF's NVFP4 needs a multiple of 64 columns
            tensors, config["intermediate_size"] = experts_of_64(tensors), 64
        if family == "nemotron_h":
            config, tensors = without_plain_mlps(config, tensors)
    else:
        config, tensors = dense(rng, family)
    vocabulary, hidden = VOCABULARY[FAMILIES[family]], config["hidden_size"]
    embedding = next((n for n in tensors if n.endswith(("embed_tokens.weight", "embeddings.weight"))), "model.embed_tokens.weight")
    tensors[embedding] = random_matrix(rng, vocabulary, hidden, 2.0 if config.get("tie_word_embeddings") else np.sqrt(hidden))
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = random_matrix(rng, vocabulary, hidden, 2.0)
    config["vocab_size"] = vocabulary
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer = GOLDEN / "tokenizers" / FAMILIES[family]
    if (tokenizer / "tokenizer.model").exists():
        shutil.copy(tokenizer / "tokenizer.model", folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                                                                  "tokenizer_class": "LlamaTokenizer"}))
    else:
        (folder / "tokenizer.json").write_bytes(gzip.decompress((tokenizer / "tokenizer.json.gz").read_bytes()))


def nvfp4_recipe(family, path):
    rules = "".join(f"  - {{quantizer_name: '{pattern}', enable: false}}\n" for pattern in LEFT_OUT.get(family, []))
    path.write_text("imports:\n" + "".join(f"  {u}: configs/ptq/units/{u}\n" for u in UNITS) + "algorithm: max\nquant_cfg:\n" +
                    "".join(f"  - $import: {u}\n" for u in UNITS) + rules)
    return ["--recipe", path]


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stdout[-800:]}{done.stderr[-800:]}")
    return done.stdout + done.stderr


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("nibble")
    p.add_argument("text")
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--only", action="append")
    a = p.parse_args()
    tools = pathlib.Path(os.environ["LLAMACPP_BIN"])
    os.environ["LD_LIBRARY_PATH"] = f"{tools}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    failed = 0
    print("| model | file | llama.cpp | nibble | ratio |\n|---|---|---|---|---|")
    for family in a.only or FAMILIES:
        folder = a.work / family
        make(family, folder)
        for kind in KINDS:
            file = a.work / f"{family}-{kind}.gguf"
            file.unlink(missing_ok=True)
            try:
                if kind == "bf16":
                    run([a.nibble, "convert", folder, "-o", file, "--format", "gguf", "--quiet"])
                else:
                    recipe = nvfp4_recipe(family, a.work / "recipe.yaml") if kind == "nvfp4" else ["--recipe", "mxfp4", "--weights-only"]
                    run([a.nibble, "quantize", folder, "-o", file, "--format", "gguf", "--quiet", *recipe])
                log = run([tools / "llama-perplexity", "-m", file, "-f", a.text, "--chunks", 4, "-c", 256, "-t", 2])
                found = re.search(r"Final estimate: PPL = ([0-9.]+)", log)
                if not found:
                    raise RuntimeError(f"llama-perplexity printed no number for {file}:\n{log[-800:]}")
                theirs = float(found[1])
                report = json.loads(run([a.nibble, "eval", file, "--text", a.text, "--chunks", 4, "--context", 256, "--compute", "f32", "--weights-only",
                                         "--json"]))
                ours = report["checkpoints"][0]["tasks"][0]["metrics"]["perplexity"]["value"]
            except RuntimeError as error:
                failed += 1
                print(f"| {family} | {kind} | FAILED | | |\n{error}", flush=True)
                continue
            finally:
                file.unlink(missing_ok=True)
            good = abs(ours / theirs - 1) <= BOUNDS[kind]
            failed += not good
            print(f"| {family} | {kind} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.4f}{'' if good else ' FAILED'} |", flush=True)
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


main()
