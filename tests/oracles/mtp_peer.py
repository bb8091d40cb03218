"""Writes tests/data/mtp_peers.json: logits of the layers for multi-token prediction of deepseek_v3 and nemotron_h in
FP64 numpy. Hidden states and weights follow from names (made_up() below; tests/model/predictor_test.cpp has the
same rule).

    .venv/bin/python tests/oracles/mtp_peer.py

The layers are those of vLLM: x = eh_proj [enorm(embedding of the next token) ; hnorm(hidden state)], residual blocks, a
norm, the model's head. When a layer is applied again, deepseek_v3 passes on the value before that norm, nemotron_h the
value after it.
"""
import json
import os

import numpy as np

TEXT, DRAFTS = 70, 3  # rows of a text, more than a page of the cache; tokens drafted after it
DEEPSEEK = dict(model_type="deepseek_v3", vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_nextn_predict_layers=1,
                num_attention_heads=3, num_key_value_heads=3, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                v_head_dim=24, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16,
                n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0,
                max_position_embeddings=256, tie_word_embeddings=False)
NEMOTRON = dict(model_type="nemotron_h", hybrid_override_pattern="-", mtp_hybrid_override_pattern="*E", num_hidden_layers=1,
                num_nextn_predict_layers=1, vocab_size=64, hidden_size=48, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
                head_dim=16, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=24, moe_latent_size=32,
                moe_shared_expert_intermediate_size=40, norm_topk_prob=True, routed_scaling_factor=2.5, mlp_hidden_act="relu2",
                layer_norm_epsilon=1e-5, max_position_embeddings=256, tie_word_embeddings=False)


def made_up(name, shape):
    """Returns BF16 numbers of a linear congruential generator seeded by the name."""
    x = (12345 + sum(b * (i + 1) for i, b in enumerate(name.encode()))) & 0xFFFFFFFF
    values = np.empty(int(np.prod(shape)), np.float64)
    for i in range(values.size):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        values[i] = (x >> 8) / 16777216.0 - 0.5
    values = values + 1 if name.endswith("norm.weight") else values * (2 if "embed" in name else 0.5)
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64).reshape(shape)


def rms_norm(x, name, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * made_up(name, (x.shape[-1],))


def linear(x, name, rows):
    return x @ made_up(name + ".weight", (rows, x.shape[-1])).T


def softmax_attention(q, k, v, scale):
    """Computes attention for q [heads, dim] of one position; k and v [tokens, heads, dim] cover all positions up to
    it.
    """
    s = np.einsum("hd,thd->ht", q, k) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("ht,thd->hd", p / p.sum(-1, keepdims=True), v).reshape(-1)


def experts(x, prefix, c, act):
    """Computes one row: a sigmoid router with selection bias and groups, routed experts, a shared expert."""
    n, groups = c["n_routed_experts"], c.get("n_group", 1)
    score = 1 / (1 + np.exp(-linear(x, prefix + ".gate", n)))
    selection = score + made_up(prefix + ".gate.e_score_correction_bias", (n,))
    if groups > 1:
        best = np.sort(selection.reshape(groups, -1), -1)[:, -2:].sum(-1)
        for g in np.argsort(-best)[c["topk_group"]:]:
            selection[g * n // groups:(g + 1) * n // groups] = -np.inf
    chosen = np.argsort(-selection)[:c["num_experts_per_tok"]]
    weights = score[chosen] / score[chosen].sum() * c["routed_scaling_factor"]
    latent = c.get("moe_latent_size", 0)
    inner = linear(x, prefix + ".fc1_latent_proj", latent) if latent else x
    y = sum(w * act(inner, f"{prefix}.experts.{e}", c["moe_intermediate_size"]) for w, e in zip(weights, chosen))
    if latent:
        y = linear(y, prefix + ".fc2_latent_proj", x.size)
    shared = c.get("moe_shared_expert_intermediate_size", c["moe_intermediate_size"])
    return y + act(x, prefix + ".shared_experts", shared)


def silu_mlp(x, name, width):
    gate = linear(x, name + ".gate_proj", width)
    return linear(gate / (1 + np.exp(-gate)) * linear(x, name + ".up_proj", width), name + ".down_proj", x.size)


def relu2_mlp(x, name, width):
    return linear(np.maximum(linear(x, name + ".up_proj", width), 0) ** 2, name + ".down_proj", x.size)


class DeepSeek:
    config = DEEPSEEK
    base = "model.layers.1."
    joins, norm, embedding, eps = base, base + "shared_head.norm.weight", "model.embed_tokens.weight", 1e-6
    hands_on_normed = False

    def __init__(self):
        self.k, self.v = [], []

    def rotated(self, x, position):
        half = x.shape[-1] // 2
        angle = position * 10000.0 ** (-np.arange(half) / half)
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1).reshape(x.shape)

    def layer(self, x, position):
        c, p = self.config, self.base + "self_attn"
        heads, nope, rope, v_dim, rank = 3, 16, 8, 24, 32
        h = rms_norm(x, self.base + "input_layernorm.weight", self.eps)
        q = linear(rms_norm(linear(h, p + ".q_a_proj", 24), p + ".q_a_layernorm.weight", 1e-6), p + ".q_b_proj", heads * (nope + rope)).reshape(heads, -1)
        kv_a = linear(h, p + ".kv_a_proj_with_mqa", rank + rope)
        kv = linear(rms_norm(kv_a[:rank], p + ".kv_a_layernorm.weight", 1e-6), p + ".kv_b_proj", heads * (nope + v_dim)).reshape(heads, -1)
        q[:, nope:] = self.rotated(q[:, nope:], position)
        shared = np.broadcast_to(self.rotated(kv_a[rank:], position), (heads, rope))
        self.k[position:] = [np.concatenate([kv[:, :nope], shared], -1)]
        self.v[position:] = [kv[:, nope:]]
        mixed = softmax_attention(q, np.array(self.k), np.array(self.v), (nope + rope) ** -0.5)
        x = x + linear(mixed, p + ".o_proj", x.size)
        return x + experts(rms_norm(x, self.base + "post_attention_layernorm.weight", self.eps), self.base + "mlp", c, silu_mlp)


class Nemotron:
    config = NEMOTRON
    base = "mtp.layers."
    joins, norm, embedding, eps = base + "0.", base + "1.final_layernorm.weight", "backbone.embeddings.weight", 1e-5
    hands_on_normed = True

    def __init__(self):
        self.k, self.v = [], []

    def layer(self, x, position):
        p, heads, groups, dim = self.base + "0.mixer", 4, 2, 16
        h = rms_norm(x, self.base + "0.norm.weight", self.eps)
        q = linear(h, p + ".q_proj", heads * dim).reshape(heads, dim)
        self.k[position:] = [linear(h, p + ".k_proj", groups * dim).reshape(groups, dim).repeat(heads // groups, 0)]
        self.v[position:] = [linear(h, p + ".v_proj", groups * dim).reshape(groups, dim).repeat(heads // groups, 0)]
        x = x + linear(softmax_attention(q, np.array(self.k), np.array(self.v), dim ** -0.5), p + ".o_proj", x.size)
        return x + experts(rms_norm(x, self.base + "1.norm.weight", self.eps), self.base + "1.mixer", self.config, relu2_mlp)


def row(model, token, hidden, position):
    """Returns the logits, and the input of the next application."""
    c = model.config
    embedded = made_up(model.embedding, (c["vocab_size"], hidden.size))[token]
    both = np.concatenate([rms_norm(embedded, model.joins + "enorm.weight", model.eps), rms_norm(hidden, model.joins + "hnorm.weight", model.eps)])
    x = model.layer(linear(both, model.joins + "eh_proj", hidden.size), position)
    normed = rms_norm(x, model.norm, model.eps)
    return linear(normed, "lm_head", c["vocab_size"]), normed if model.hands_on_normed else x


def main():
    tokens = [(i * i * 7 + 3 * i + 5) % 64 for i in range(TEXT + DRAFTS)]
    hidden = made_up("hidden", (TEXT, 48))
    models = []
    for kind in (DeepSeek, Nemotron):
        model, rows = kind(), []
        for i in range(TEXT + DRAFTS):
            logits, handed_on = row(model, tokens[i], hidden[i] if i < TEXT else handed_on, i)
            rows.append(logits)
        kept = [0, 1, 63, 64, *range(TEXT - 1, TEXT + DRAFTS)]
        models.append(dict(config=model.config, rows=kept, logits=[[float(f"{x:.8g}") for x in rows[r]] for r in kept]))
    path = os.path.join(os.path.dirname(__file__), "../data/mtp_peers.json")
    with open(path, "w") as f:
        f.write(json.dumps(dict(text=TEXT, tokens=tokens))[:-1] + ", \"models\": [\n" + ",\n".join(json.dumps(m) for m in models) + "]}\n")


main()
