"""Compares the logits of `nibble logits` with transformers for the 43 families of tests/data/golden/families.tar.gz with
other options than theirs: sizes, heads, biases, norms, windows, kinds of RoPE, patterns of layers, experts, groups.

    test_family_options.py NIBBLE [FAMILY[:OPTION]...]     exit status 77: a package is missing

A variant changes one option, and three variants per family change several at random. Weights are random FP32 numbers.
A variant that transformers cannot build or run is skipped. REFUSED lists what nibble refuses by name.
"""

import contextlib
import copy
import io
import json
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import zlib

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError:
    sys.exit(77)

transformers.logging.set_verbosity_error()


def first_of_equals(self, k, dim=-1, largest=True, sorted=True):
    """Replaces topk, which chooses any of equal values: an indexer with few heads scores many keys with exactly 0."""
    values, indices = torch.sort(self, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


torch.Tensor.topk = torch.topk = first_of_equals
torch.set_num_threads(1)
TOLERANCE = 2e-5  # relative to the largest logit
TOKENS = 48
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

# Key of the text's configuration -> values to try. Only keys that the family's configuration has are changed.
VALUES = {
    "vocab_size": [259], "hidden_size": [96], "intermediate_size": [40, 136], "num_attention_heads": [2, 8], "num_key_value_heads": [1, 2, 4],
    "head_dim": [8, 32], "attention_bias": [True, False], "mlp_bias": [True, False], "use_bias": [True, False], "use_qkv_bias": [True, False],
    "attention_out_bias": [True], "lm_head_bias": [False], "tie_word_embeddings": [True, False], "rms_norm_eps": [1e-3], "layer_norm_eps": [1e-3],
    "norm_epsilon": [1e-3], "norm_eps": [1e-3], "layernorm_epsilon": [1e-3], "sliding_window": [5, 24], "attention_chunk_size": [7],
    "max_position_embeddings": [96], "query_pre_attn_scalar": [10], "attn_logit_softcapping": [2.0, None], "final_logit_softcapping": [3.0, None],
    "logit_scale": [0.7], "logits_scaling": [3.0], "embedding_multiplier": [1.7], "residual_multiplier": [0.4], "attention_multiplier": [0.11],
    "num_experts": [5, 8], "num_local_experts": [5, 8], "n_routed_experts": [6, 8], "moe_num_experts": [5, 8], "num_experts_per_tok": [1, 3],
    "moe_k": [1, 3], "top_k_experts": [1, 3], "moe_topk": [1], "n_shared_experts": [1, 2], "moe_num_shared_experts": [0, 2], "num_shared_experts": [1, 2],
    "norm_topk_prob": [True, False], "routed_scaling_factor": [1.0, 3.1], "moe_intermediate_size": [24, 56], "shared_expert_intermediate_size": [56],
    "first_k_dense_replace": [0, 2], "decoder_sparse_step": [2], "use_qk_norm": [True, False], "qk_layernorm": [True, False],
    "use_parallel_residual": [True], "attn_temperature_tuning": [True, False], "use_expert_bias": [False], "moe_router_scaling_factor": [1.0],
    "q_lora_rank": [None, 24], "kv_lora_rank": [16], "qk_nope_head_dim": [16], "qk_rope_head_dim": [16], "v_head_dim": [8, 24],
    "index_n_heads": [2, 4], "index_head_dim": [24], "index_topk": [3, 64], "o_groups": [1, 4], "o_lora_rank": [8], "hc_mult": [3],
    "hc_sinkhorn_iters": [2], "swiglu_limit": [0.7], "swiglu_alpha": [1.3], "linear_num_key_heads": [1, 4], "linear_num_value_heads": [8],
    "linear_key_head_dim": [8, 32], "linear_value_head_dim": [8, 32], "linear_conv_kernel_dim": [2, 3], "conv_bias": [True], "conv_L_cache": [4],
    "mamba_n_groups": [2], "mamba_d_state": [8, 32], "mamba_d_conv": [3], "mamba_conv_bias": [False], "mamba_proj_bias": [True],
    "mamba_rms_norm": [True], "mamba_norm_before_gate": [False], "mamba_chunk_size": [8], "projectors_bias": [True], "key_multiplier": [1.3],
    "attention_in_multiplier": [1.4], "attention_out_multiplier": [0.6], "ssm_in_multiplier": [0.8], "ssm_out_multiplier": [1.7],
    "lm_head_multiplier": [1.5], "hidden_size_per_layer_input": [8, 0],
    "num_kv_shared_layers": [0, 1], "use_double_wide_mlp": [True], "attention_k_eq_v": [True, False], "shared_intermediate_size": [56, 0],
    "rope_interleave": [True, False], "block_auto_adjust_ff_dim": [True, False], "share_expert_dim": [48], "scoring_func": ["softmax", "sigmoid"],
    "attention_value_scale": [0.5], "add_swa_attention_sink_bias": [False], "add_full_attention_sink_bias": [True], "partial_rotary_factor": [0.25],
    "position_embedding_type": ["rope", "nope"], "use_grouped_topk": [True, False], "num_dense_layers": [0], "interleave_moe_layer_step": [1, 2],
}


def base_configs():
    archive = pathlib.Path(__file__).resolve().parent.parent / "data/golden/families.tar.gz"
    configs = {}
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            path = pathlib.PurePosixPath(member.name)
            if path.name == "config.json":
                configs[path.parent.name] = json.load(files.extractfile(member), object_hook=lambda o: float(o["__float__"]) if "__float__" in o else o)
    return dict(sorted(configs.items()))


def text_of(config):
    return config.get("text_config", config)


def patterns(text):
    """Other patterns of layers: the kinds of the golden model in another order and number."""
    lists = [k for k, v in text.items() if isinstance(v, list) and len(v) == text["num_hidden_layers"] and k not in ("mlp_multipliers", "time_step_limit")]
    n = text["num_hidden_layers"]
    orders = {"longer": [*range(n), *range(n)][:n + 2], "reversed": list(reversed(range(n)))}
    for name, order in orders.items():
        changes = {"num_hidden_layers": len(order)}
        for key in lists:
            changes[key] = [text[key][i] for i in order]
        if isinstance(text.get("per_layer_config"), dict):
            changes["per_layer_config"] = {str(i): text["per_layer_config"][str(o)] for i, o in enumerate(order) if str(o) in text["per_layer_config"]}
        yield f"layers={name}", changes


def ropes(text):
    """Other kinds and bases of RoPE."""
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict):
        return

    def changed(update):
        new = copy.deepcopy(rope)
        nested = [v for v in new.values() if isinstance(v, dict)]
        for one in nested or [new]:
            if one.get("rope_type") in ("default", "yarn", "llama3", "linear"):
                if "rope_type" in update:
                    for key in set(one) - {"rope_theta", "partial_rotary_factor"}:
                        del one[key]
                one.update(update)
        return {"rope_parameters": new}

    yield "rope=theta", changed({"rope_theta": 777.0})
    yield "rope=linear", changed({"rope_type": "linear", "factor": 3.0})
    yield "rope=yarn", changed(YARN)
    yield "rope=yarn-mscale", changed({**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 8.0, "beta_slow": 2.0})
    yield "rope=llama3", changed(LLAMA3)
    flat = [v for v in rope.values() if isinstance(v, dict)] or [rope]
    if any("partial_rotary_factor" in one for one in flat):
        yield "rope=partial", changed({"partial_rotary_factor": 0.5})


def special(family, text):
    """Options that need several keys at once."""
    if "n_group" in text:
        yield "groups", {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
    if "mamba_n_heads" in text:
        heads = 2 * text["mamba_n_heads"]
        yield "mamba heads", {"mamba_n_heads": heads, "mamba_d_head": text["mamba_d_head"] // 2, "mamba_n_groups": 2}
    if "compress_rates" in text:
        yield "rates", {"compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 16}}
        yield "no hash", {"mlp_layer_types": ["moe"] * text["num_hidden_layers"]}
        yield "all hash", {"mlp_layer_types": ["hash_moe"] * text["num_hidden_layers"]}
    if "per_layer_config" in text and "head_dim" in str(text["per_layer_config"]):
        wide = {k: {**v, "head_dim": 16} for k, v in text["per_layer_config"].items()}
        yield "one head size", {"per_layer_config": wide}
    if family == "stablelm":
        yield "norms and parallel", {"qk_layernorm": True, "use_parallel_residual": True}
    if "layer_types" in text:
        for kind in sorted(set(text["layer_types"])):
            yield f"all {kind}", {"layer_types": [kind] * text["num_hidden_layers"]}
    if "mlp_layer_types" in text:
        for kind in sorted(set(text["mlp_layer_types"])):
            yield f"all {kind} MLP", {"mlp_layer_types": [kind] * text["num_hidden_layers"]}


def variants(family, config):
    text = text_of(config)
    single = []
    for key, values in VALUES.items():
        if key not in text or isinstance(text[key], (list, dict)):
            continue
        for value in values:
            if value != text[key] and not (text[key] is None and value is not None):
                single.append((f"{key}={value}", {key: value}))
    single += list(patterns(text)) + list(ropes(text)) + list(special(family, text))
    yield "base", {}
    yield from single
    chance = random.Random(zlib.crc32(family.encode()))
    for i in range(3):
        several = {}
        for _, changes in chance.sample(single, min(4, len(single))):
            if not set(changes) & set(several):
                several.update(changes)
        yield f"random {i}", several


def fill(model, seed):
    """Random weights around what the model starts with; matrices keep the size of their products."""
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters()) | {k: v for k, v in model.named_buffers() if "bias" in k}
    for name, p in tensors.items():
        if not p.is_floating_point():
            continue
        noise = torch.randn(p.shape, generator=generator)
        with torch.no_grad():
            if p.ndim >= 2 and min(p.shape[-2:]) > 1:
                p.copy_(noise * (1.0 if "embed" in name else 1.2 / p.shape[-1] ** 0.5))
            else:
                p.add_(noise * 0.2)
    for name, p in model.named_buffers():
        if "tid2eid" in name:
            experts = int(p.max()) + 1 if int(p.max()) > 0 else 1
            rows = torch.stack([torch.randperm(max(experts, p.shape[-1]), generator=generator)[:p.shape[-1]] for _ in range(p.shape[0])])
            p.copy_(rows.to(p.dtype))


def build(config, folder):
    """Saves a random model; returns transformers' logits of ids."""
    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    made = kind.from_dict(copy.deepcopy(config))
    auto = next(a for a in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText) if type(made) in a._model_mapping)
    torch.manual_seed(1)
    model = auto.from_config(made, dtype=torch.float32, attn_implementation="eager").eval()
    with contextlib.suppress(Exception):
        model.set_experts_implementation("eager")
    fill(model, 5)
    model.save_pretrained(folder)
    ids = (torch.arange(TOKENS).reshape(1, TOKENS) * 37 + 11) % 250
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with contextlib.suppress(Exception):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].float()
        for p in model.parameters():
            p.mul_(1 + 1e-6 * torch.randn_like(p))
        moved = (model(ids, use_cache=False).logits[0].float() - logits).abs().max() / logits.abs().max()
    return ids, logits, moved.item()


def compare(nibble, config, changes, work):
    """Returns ("skip" | "refused" | "differs" | "equal", text)."""
    config = copy.deepcopy(config)
    text_of(config).update(changes)
    for section in (config, text_of(config)):
        for key in ("dtype", "torch_dtype", "transformers_version", "qk_head_dim"):
            section.pop(key, None)
    if "tie_word_embeddings" in changes:
        config["tie_word_embeddings"] = changes["tie_word_embeddings"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ids, theirs, moved = build(config, work / "model")
    except Exception as error:
        return "skip", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150]
    if not theirs.isfinite().all():
        return "skip", "the logits are not finite"
    if moved > 1e-4:
        return "skip", f"an expert or a key is chosen by less than rounding: weights changed by 1e-6 move the logits by {moved:.1e}"
    save_file({"input_ids": ids}, work / "ids.safetensors")
    done = subprocess.run([nibble, "logits", work / "model", "--ids", work / "ids.safetensors", "-o", work / "out.safetensors", "--compute", "f32"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return "refused", done.stderr.strip().replace(str(work), "")[:300]
    ours = load_file(work / "out.safetensors")["logits"][0].float()
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    return ("equal" if difference <= TOLERANCE else "differs"), f"{difference:.1e}"


def main():
    nibble = str(pathlib.Path(sys.argv[1]).resolve())
    wanted = sys.argv[2:]
    counts = {}
    for family, config in base_configs().items():
        for name, changes in variants(family, config):
            if wanted and not any(w == family or w == f"{family}:{name}" for w in wanted):
                continue
            with tempfile.TemporaryDirectory() as folder:
                result, text = compare(nibble, config, changes, pathlib.Path(folder))
            if result == "refused" and any(r in text for r in REFUSED):
                result = "known"
            if name == "base" and result == "skip":
                result = "differs"  # every family is compared at least once
            counts[result] = counts.get(result, 0) + 1
            if result != "equal" or wanted:
                print(f"{result} {family}: {name}: {text}", flush=True)
    print(counts)
    return 1 if counts.get("differs") or counts.get("refused") else 0


REFUSED = ()

if __name__ == "__main__":
    sys.exit(main())
