"""Compares GGUF files of `nibble convert` with gguf-py: every family of tests/data/golden/families.tar.gz that has a GGUF
architecture is written, read by gguf-py and read back by nibble.

    test_gguf_families.py NIBBLE [FAMILY...]     exit status 77: a package is missing

Checked: the names of tensors are those of gguf-py's map for the Hugging Face names; the keys that llama.cpp's loader
needs are there with the values of config.json; logits of the file are those of the folder, bit for bit.
"""

import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

try:
    import gguf
    import numpy
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    sys.exit(77)

# Family -> (llama.cpp's architecture, pairs of a key and the field of config.json with its value).
COMMON = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
          "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads", "feed_forward_length": "intermediate_size",
          "vocab_size": "vocab_size"}
RMS, LAYER = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}, "attention.layer_norm_epsilon"
GROUPED = {"expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
           "expert_shared_count": "n_shared_experts", "leading_dense_block_count": "first_k_dense_replace",
           "expert_weights_scale": "routed_scaling_factor", "expert_weights_norm": "norm_topk_prob"}
WINDOW = {"attention.sliding_window": "sliding_window"}
FAMILIES = {
    "granite": ("granite", RMS | {"logit_scale": "logits_scaling", "residual_scale": "residual_multiplier", "embedding_scale": "embedding_multiplier",
                                  "attention.scale": "attention_multiplier"}),
    "smollm3": ("smollm3", RMS), "olmo2": ("olmo2", RMS), "olmo3": ("olmo2", RMS | WINDOW), "exaone4": ("exaone4", RMS),
    "cohere2": ("cohere2", {LAYER: "layer_norm_eps", "logit_scale": "logit_scale"} | WINDOW),
    "gemma2": ("gemma2", RMS | WINDOW | {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}),
    "dots1": ("dots1", RMS | GROUPED), "glm4_moe": ("glm4moe", RMS | GROUPED),
    "minimax_m2": ("minimax-m2", RMS | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
                                        "expert_feed_forward_length": "intermediate_size", "rope.dimension_count": "rotary_dim"}),
    "starcoder2": ("starcoder2", {LAYER: "norm_epsilon"}),
    "stablelm": ("stablelm", {LAYER: "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"}),
    "ministral3": ("mistral3", RMS), "seed_oss": ("seed_oss", RMS),
}
# Fields that are replaced, because llama.cpp cannot compute the golden model.
CHANGES = {
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 9}, "starcoder2": {"sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0] * 9}, "gemma2": {"query_pre_attn_scalar": 16},
} | {name: {"tie_word_embeddings": False} for name in ("dots1", "minimax_m2", "olmo2", "olmo3", "stablelm")}


def hf_name(name):
    """Returns the name under which gguf-py's map knows a tensor: that of a stack for a single expert."""
    return re.sub(r"\.experts\.\d+\.", ".experts.", name)


def prepare(family, members, folder):
    folder.mkdir()
    for name, data in members.items():
        (folder / name).write_bytes(data)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    for key, value in CHANGES.get(family, {}).items():
        text[key] = value[:text["num_hidden_layers"]] if isinstance(value, list) else value
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    if text.get("tie_word_embeddings") is False and not any("lm_head" in name for name in tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
        save_file(tensors, folder / "model.safetensors")
    return text, list(tensors)


def run(*command, fails=False):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, f"{' '.join(map(str, command))}: {done.stderr}"
    return done.stderr


def check(nibble, family, members, work):
    text, stored_names = prepare(family, members, work / "hf")
    architecture, keys = FAMILIES[family]
    run(nibble, "convert", work / "hf", "-o", work / "m.gguf", "--format", "gguf", "--quiet")
    reader = gguf.GGUFReader(work / "m.gguf")
    assert reader.fields["general.architecture"].contents() == architecture
    for key, field in (COMMON | keys).items():
        stored = reader.fields[f"{architecture}.{key}"].contents()
        expected = text.get(field)
        if field == "intermediate_size" and expected is None:
            continue
        assert stored == expected or abs(stored - numpy.float32(expected)) == 0, (family, key, stored, expected)
    # Names.
    arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(arch, text["num_hidden_layers"])
    theirs = set()
    for name in stored_names:
        if name == "lm_head.weight" and text.get("tie_word_embeddings"):
            continue
        known = names.get_name(hf_name(name), try_suffixes=(".weight", ".bias"))
        assert known or "e_score_correction_bias" in name, (family, name)
        theirs.add(known or re.sub(r".*layers\.(\d+)\..*", r"blk.\1.exp_probs_b.bias", name))
    ours = {t.name for t in reader.tensors}
    assert ours - {"rope_freqs.weight"} == theirs, (family, sorted(ours ^ theirs))
    # Logits.
    ids = torch.arange(32).reshape(1, 32) * 37 % 250
    save_file({"input_ids": ids}, work / "ids.safetensors")
    for model, out in ((work / "hf", "a"), (work / "m.gguf", "b")):
        run(nibble, "logits", model, "--ids", work / "ids.safetensors", "-o", work / out, "--compute", "f32")
    a, b = (load_file(work / n)["logits"] for n in "ab")
    assert torch.equal(a, b), (family, ((a - b).abs().max() / a.abs().max()).item())
    return len(ours)


def main():
    nibble = pathlib.Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]
    archive = pathlib.Path(__file__).resolve().parent.parent / "data/golden/families.tar.gz"
    models = {}
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            path = pathlib.PurePosixPath(member.name)
            if path.parent.name in FAMILIES and path.name in ("config.json", "model.safetensors"):
                models.setdefault(path.parent.name, {})[path.name] = files.extractfile(member).read()
    missing = set(FAMILIES) - set(models)
    assert not missing, missing
    failed = 0
    for family in sorted(models):
        if wanted and family not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{family}: {check(nibble, family, models[family], pathlib.Path(folder))} tensors", flush=True)
            except (AssertionError, KeyError) as error:
                failed += 1
                print(f"{family}: failed: {error!r}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
