#!/usr/bin/env python3
"""Trains a Llama in numpy and FP64, independently of nibble: ten steps of AdamW, and of Muon, on the mean
cross-entropy of packed documents.

    train_twin.py OUT

It writes OUT/model (an F32 checkpoint of a tiny Llama). OUT/steps.json has tokens, labels, weights, documents, losses,
gradient norms, and the sum and sum of squares of every master after the last step. OUT/muon.json has losses, norms and
masters of the same steps with Muon. OUT/bf16.json has other batches, with losses and norms of AdamW when the forward
pass is rounded to BF16 as in nibble, and the losses without one of the roundings, and without all. The seed of these
batches is one for which no value lies so close to the boundary of two BF16 numbers that FP64 and FP32 sums round
differently; one such value would change all later losses.

tests/train/twin_test.cpp trains the same model with nibble in FP32 and in BF16. Formulas: torch.optim.AdamW's
documentation, transformers' LlamaModel, arXiv 2502.16982 (Muon with matched RMS), Keller Jordan's coefficients.
"""
import json, pathlib, sys
import numpy as np
from safetensors.numpy import save_file

V, H, L, NH, NKV, D, F, EPS, THETA = 40, 24, 2, 4, 2, 6, 32, 1e-5, 10000.0
ROWS, SEQ, STEPS = 3, 20, 10
LR, B1, B2, AEPS, WD, CLIP, MU = 5e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 0.95
rng = np.random.default_rng(20261123)

def model():
    p = {'model.embed_tokens.weight': rng.normal(0, 0.5, (V, H))}
    for l in range(L):
        a, m = f'model.layers.{l}.self_attn.', f'model.layers.{l}.mlp.'
        p[f'model.layers.{l}.input_layernorm.weight'] = rng.normal(1, 0.1, H)
        p[a + 'q_proj.weight'] = rng.normal(0, 0.25, (NH * D, H))
        p[a + 'k_proj.weight'] = rng.normal(0, 0.25, (NKV * D, H))
        p[a + 'v_proj.weight'] = rng.normal(0, 0.25, (NKV * D, H))
        p[a + 'o_proj.weight'] = rng.normal(0, 0.25, (H, NH * D))
        p[f'model.layers.{l}.post_attention_layernorm.weight'] = rng.normal(1, 0.1, H)
        p[m + 'gate_proj.weight'] = rng.normal(0, 0.25, (F, H))
        p[m + 'up_proj.weight'] = rng.normal(0, 0.25, (F, H))
        p[m + 'down_proj.weight'] = rng.normal(0, 0.25, (H, F))
    p['model.norm.weight'] = rng.normal(1, 0.1, H)
    p['lm_head.weight'] = rng.normal(0, 0.25, (V, H))
    return {k: v.astype(np.float32).astype(np.float64) for k, v in p.items()}

# Places where BF16 training rounds (docs/topics/training.md, Numerics): the output of every operator in the forward pass, once. The
# backward pass reads the rounded values in FP32.
PLACES = {'weights': 'matrices as they are published', 'norm': 'normalised rows', 'linear': 'outputs of linears, logits too', 'rope': 'rotated queries and keys',
          'attention': 'mixed values', 'activation': 'silu(gate) * up', 'residual': 'the stream after every block'}
rounded = set()
BF16_SEED = 2

def b(place, x):
    """Rounds x to BF16, to nearest with ties to even, if `place` is rounded."""
    if place not in rounded: return x
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)

def norm(x, w):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return b('norm', x * r * w), (x, r, w)

def norm_back(saved, dy):
    x, r, w = saved
    g = dy * w
    return r * (g - x * r * r * (g * x).mean(-1, keepdims=True)), (dy * x * r).sum(0)

def rotate(x, positions, sign):                 # x [T, heads, D]; pairs are (i, i + D / 2)
    angle = positions[:, None] * THETA ** (-2.0 * np.arange(D // 2) / D)
    c, s = np.cos(angle)[:, None, :], sign * np.sin(angle)[:, None, :]
    a, b = x[..., :D // 2], x[..., D // 2:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)

def row(p, tokens, labels, slopes, documents, grads):
    """Adds the gradient of one row's sum of slopes * log p(label) to grads. Returns the log-probabilities."""
    p = {k: b('weights', v) if v.ndim == 2 else v for k, v in p.items()}
    T = len(tokens)
    document = np.searchsorted(documents, np.arange(T), side='right')
    positions = np.arange(T) - np.asarray(documents)[document - 1]
    seen = (document[:, None] == document[None, :]) & (np.arange(T)[:, None] >= np.arange(T)[None, :])
    x = p['model.embed_tokens.weight'][tokens]
    tape = []
    for l in range(L):
        a, m = f'model.layers.{l}.self_attn.', f'model.layers.{l}.mlp.'
        n, s1 = norm(x, p[f'model.layers.{l}.input_layernorm.weight'])
        q = b('rope', rotate(b('linear', n @ p[a + 'q_proj.weight'].T).reshape(T, NH, D), positions, 1))
        k = b('rope', rotate(b('linear', n @ p[a + 'k_proj.weight'].T).reshape(T, NKV, D), positions, 1))
        v = b('linear', n @ p[a + 'v_proj.weight'].T).reshape(T, NKV, D)
        kk, vv = k.repeat(NH // NKV, 1), v.repeat(NH // NKV, 1)
        z = np.where(seen[None], np.einsum('thd,shd->hts', q, kk) / np.sqrt(D), -np.inf)
        w = np.exp(z - z.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
        mix = b('attention', np.einsum('hts,shd->thd', w, vv).reshape(T, NH * D))
        x = b('residual', x + b('linear', mix @ p[a + 'o_proj.weight'].T))
        n2, s2 = norm(x, p[f'model.layers.{l}.post_attention_layernorm.weight'])
        g, u = b('linear', n2 @ p[m + 'gate_proj.weight'].T), b('linear', n2 @ p[m + 'up_proj.weight'].T)
        sig = 1 / (1 + np.exp(-g))
        h = b('activation', g * sig * u)
        x = b('residual', x + b('linear', h @ p[m + 'down_proj.weight'].T))
        tape.append((n, s1, q, kk, vv, w, mix, n2, s2, g, u, sig, h))
    y, sn = norm(x, p['model.norm.weight'])
    logits = b('linear', y @ p['lm_head.weight'].T)
    shift = logits - logits.max(-1, keepdims=True)
    logp = shift - np.log(np.exp(shift).sum(-1, keepdims=True))
    out = np.where(labels >= 0, logp[np.arange(T), labels], 0)
    d = -np.exp(logp)
    d[np.arange(T), labels] += 1
    d *= np.where(labels >= 0, slopes, 0)[:, None]
    def add(name, g): grads[name] = grads.get(name, 0) + g
    add('lm_head.weight', d.T @ y)
    dx, dw = norm_back(sn, d @ p['lm_head.weight'])
    add('model.norm.weight', dw)
    for l in reversed(range(L)):
        a, m = f'model.layers.{l}.self_attn.', f'model.layers.{l}.mlp.'
        n, s1, q, kk, vv, w, mix, n2, s2, g, u, sig, h = tape[l]
        add(m + 'down_proj.weight', dx.T @ h)
        dh = dx @ p[m + 'down_proj.weight']
        dg, du = dh * u * sig * (1 + g * (1 - sig)), dh * g * sig
        add(m + 'gate_proj.weight', dg.T @ n2)
        add(m + 'up_proj.weight', du.T @ n2)
        dn, dw = norm_back(s2, dg @ p[m + 'gate_proj.weight'] + du @ p[m + 'up_proj.weight'])
        add(f'model.layers.{l}.post_attention_layernorm.weight', dw)
        dx = dx + dn
        add(a + 'o_proj.weight', dx.T @ mix)
        dmix = (dx @ p[a + 'o_proj.weight']).reshape(T, NH, D)
        dwt = np.einsum('thd,shd->hts', dmix, vv)
        dz = w * (dwt - (w * dwt).sum(-1, keepdims=True)) / np.sqrt(D)
        share = lambda t: t.reshape(T, NKV, NH // NKV, D).sum(2)
        dv = share(np.einsum('hts,thd->shd', w, dmix))
        dk = rotate(share(np.einsum('hts,thd->shd', dz, q)), positions, -1)
        dq = rotate(np.einsum('hts,shd->thd', dz, kk), positions, -1)
        dn = 0
        for name, t in (('q_proj.weight', dq), ('k_proj.weight', dk), ('v_proj.weight', dv)):
            t = t.reshape(T, -1)
            add(a + name, t.T @ n)
            dn = dn + t @ p[a + name]
        dn, dw = norm_back(s1, dn)
        add(f'model.layers.{l}.input_layernorm.weight', dw)
        dx = dx + dn
    e = np.zeros((V, H))
    np.add.at(e, tokens, dx)
    add('model.embed_tokens.weight', e)
    return out

def orthogonal(u):
    if u.shape[0] > u.shape[1]: return orthogonal(u.T).T
    x = u / (np.linalg.norm(u) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x

def train(p, muon, tokens, labels, weights, documents):
    """Trains p in place. Returns losses, gradient norms and masters."""
    m, v = {k: 0 for k in p}, {k: 0 for k in p}
    losses, norms = [], []
    for t in range(STEPS):
        w = np.where(labels[t] >= 0, weights[t], 0)
        grads, loss = {}, 0
        for r in range(ROWS):
            logp = row(p, tokens[t, r], labels[t, r], -w[r] / w.sum(), documents[t][r], grads)
            loss -= (w[r] * logp).sum() / w.sum()
        length = np.sqrt(sum((g * g).sum() for g in grads.values()))
        losses.append(loss), norms.append(length)
        for k in p:
            g = grads[k] * min(1, CLIP / length)
            if p[k].ndim == 2: p[k] = p[k] * (1 - LR * WD)
            if muon and '_proj.' in k:
                m[k] = MU * m[k] + g
                p[k] = p[k] - LR * 0.2 * np.sqrt(max(p[k].shape)) * orthogonal(g + MU * m[k])
                continue
            m[k] = B1 * m[k] + (1 - B1) * g
            v[k] = B2 * v[k] + (1 - B2) * g * g
            p[k] = p[k] - LR * (m[k] / (1 - B1 ** (t + 1))) / (np.sqrt(v[k] / (1 - B2 ** (t + 1))) + AEPS)
            # masters are FP32; products use their BF16 values
            if rounded: p[k] = p[k].astype(np.float32).astype(np.float64)
    return {'losses': losses, 'norms': norms, 'masters': {k: [float(x.sum()), float((x * x).sum())] for k, x in p.items()}}

def batches_of(rng):
    tokens = rng.integers(0, V, (STEPS, ROWS, SEQ))
    labels = np.where(rng.random((STEPS, ROWS, SEQ)) < 0.2, -1, rng.integers(0, V, (STEPS, ROWS, SEQ)))
    weights = rng.integers(0, 8, (STEPS, ROWS, SEQ)) / 4
    documents = [[sorted({0, *rng.integers(1, SEQ, 2).tolist()}) for _ in range(ROWS)] for _ in range(STEPS)]
    return tokens, labels, weights, documents

def described(tokens, labels, weights, documents):
    return {'rows': ROWS, 'seq': SEQ, 'learning_rate': LR, 'weight_decay': WD, 'clip': CLIP, 'tokens': tokens.reshape(STEPS, -1).tolist(),
            'labels': labels.reshape(STEPS, -1).tolist(), 'weights': weights.reshape(STEPS, -1).tolist(),
            'documents': [[r * SEQ + b for r in range(ROWS) for b in documents[t][r]] for t in range(STEPS)]}

def main(out):
    out = pathlib.Path(out)
    (out / 'model').mkdir(parents=True, exist_ok=True)
    p = model()
    save_file({k: v.astype(np.float32) for k, v in p.items()}, out / 'model' / 'model.safetensors')
    (out / 'model' / 'config.json').write_text(json.dumps({
        'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'vocab_size': V, 'hidden_size': H, 'intermediate_size': F, 'num_hidden_layers': L,
        'num_attention_heads': NH, 'num_key_value_heads': NKV, 'head_dim': D, 'rms_norm_eps': EPS, 'rope_theta': THETA, 'hidden_act': 'silu',
        'max_position_embeddings': 512, 'tie_word_embeddings': False}, indent=1) + '\n')
    batches = batches_of(rng)
    (out / 'muon.json').write_text(json.dumps(train(dict(p), True, *batches)) + '\n')
    (out / 'steps.json').write_text(json.dumps({**described(*batches), **train(dict(p), False, *batches)}) + '\n')
    batches = batches_of(np.random.default_rng(BF16_SEED))
    def in_bf16(places):
        rounded.update(places)
        made = train(dict(p), False, *batches)
        rounded.clear()
        return {k: made[k] for k in ('losses', 'norms')}
    without = {place: in_bf16(set(PLACES) - {place})['losses'] for place in PLACES} | {'all': in_bf16(())['losses']}
    (out / 'bf16.json').write_text(json.dumps({**described(*batches), **in_bf16(PLACES), 'without': without}) + '\n')

if __name__ == '__main__':
    main(sys.argv[1])
