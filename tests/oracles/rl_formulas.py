"""Slow reference for nibble/rl/{advantage,policy_loss}: writes tests/data/rl/formulas.json, which tests/rl reads.

The formulas are those of NeMo RL's ClippedPGLossFn and advantage estimators, implemented here from their description
and differentiated by central differences in double precision: c varies, and stop(c) is a second argument that does not.
No automatic differentiation is used. Metrics are those of NeMo RL's class, computed from whole arrays where nibble adds
token by token.

    .venv/bin/python tests/oracles/rl_formulas.py tests/data/rl/formulas.json
"""
import json
import sys

import numpy as np


def kl(x, kind):
    return {"k1": -x, "k2": x * x / 2, "k3": np.exp(x) - 1 - x}[kind]


def batch_loss(c, stop, batch, o):
    """Returns the loss of all answers; c and stop are lists of arrays, one per answer."""
    tokens = sum(int(a["mask"].sum()) for a in batch if a["weight"])
    answers = sum(1 for a in batch if a["weight"] and a["mask"].sum())
    total = 0.0
    for a, cc, cs in zip(batch, c, stop):
        m = a["mask"].astype(float)
        if a["weight"] == 0 or m.sum() == 0:
            continue
        g, f, adv = a["g"], a["f"], a["advantage"]
        p = cs if o["force_on_policy_ratio"] else a["p"]
        length = m.sum()
        if o["sequence_level_importance_ratios"]:
            rho = np.full_like(cc, np.exp((m * (cc - p)).sum() / length))
        else:
            rho = np.exp(cc - p)
        lo, hi = 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"]
        if o["disable_ppo_ratio"]:
            pg = -adv * cc
        elif o["use_cispo"]:
            pg = -adv * np.clip(np.exp(cs - p), lo, hi) * cc
        else:
            pg = np.maximum(-adv * rho, -adv * np.clip(rho, lo, hi))
            if o["ratio_clip_c"]:
                pg = np.where(np.less(adv, 0), np.minimum(pg, -adv * o["ratio_clip_c"]), pg)
        w = np.ones_like(cc)
        if o["importance_sampling_correction"]:
            if o["sequence_level_importance_ratios"]:
                w = np.full_like(cc, np.exp((m * (p - g)).sum()))
            else:
                w = np.exp(p - g)
            low, high = o["importance_low"] or 0.0, o["importance_high"]
            if o["truncation"] == "tis":
                w = np.clip(w, low, high)
            elif o["truncation"] == "icepop":
                w = np.where((w < low) | (w > high), 0.0, w)
            elif o["truncation"] == "seq-mask-tis":
                mean = np.exp((m * (p - g)).sum() / length)
                w = w * float(low <= mean <= high)
        value = w * pg
        if o["kl_penalty"] > 0 and not o["kl_in_reward"]:
            x = np.clip(f - cc, -20, 20)
            inside = (f - cs > -20) & (f - cs < 20)
            u = np.exp(cc - g) if o["use_on_policy_kl_approximation"] else np.exp(cc - cs)
            u_stop = np.exp(cs - g) if o["use_on_policy_kl_approximation"] else np.ones_like(cc)
            u = np.where(inside, u, u_stop)
            value = value + o["kl_penalty"] * np.clip(u * kl(x, o["kl_type"]), -10, 10)
        if o["token_level_loss"]:
            total += a["weight"] * (m * value).sum() / (tokens + 1e-8)
        else:
            total += a["weight"] * (m * value).sum() / (length + 1e-8) / (answers + 1e-8)
    return total


def gradient(batch, o):
    stop = [a["c"].astype(np.float64) for a in batch]
    out = []
    for i, a in enumerate(batch):
        row = []
        for t in range(len(a["c"])):
            h = 1e-6
            shifted = [x.copy() for x in stop]
            shifted[i][t] += h
            up = batch_loss(shifted, stop, batch, o)
            shifted[i][t] -= 2 * h
            row.append((up - batch_loss(shifted, stop, batch, o)) / (2 * h))
        out.append(row)
    return batch_loss(stop, stop, batch, o), out


def metrics(batch, o):
    """Returns means over the tokens of the loss, as they are logged."""
    batch = [a for a in batch if a["weight"] and a["mask"].sum()]
    m = np.concatenate([a["mask"] for a in batch]).astype(bool)
    c, g, f = (np.concatenate([a[k] for a in batch])[m] for k in "cgf")
    p = c if o["force_on_policy_ratio"] else np.concatenate([a["p"] for a in batch])[m]
    of_answer = np.concatenate([np.full(len(a["c"]), i) for i, a in enumerate(batch)])[m]
    answers = range(len(batch))
    n = len(c)

    def k3(x):
        return np.exp(x) - 1 - x

    middle = np.log((np.exp(p) + np.exp(g)) / 2)
    ratio = np.exp(c - p)
    if o["sequence_level_importance_ratios"] and not o["force_on_policy_ratio"]:
        ratio = np.exp([np.mean((c - p)[of_answer == i]) for i in answers])[of_answer]
    errors = [np.mean(np.exp(np.abs(g - p)[of_answer == i])) for i in answers]
    out = {
        "token_mult_prob_error": np.exp(np.abs(g - p)).sum() / n, "gen_kl_error": k3(p - g).sum() / n,
        "policy_kl_error": k3(g - p).sum() / n, "js_divergence_error": (k3(p - middle) + k3(g - middle)).sum() / 2 / n,
        "sampling_importance_ratio": np.exp(p - g).sum() / n, "approx_entropy": -(np.exp(c - g) * c).sum() / n,
        "probs_ratio": ratio.sum() / n, "probs_ratio_min": ratio.min(), "probs_ratio_max": ratio.max(),
        "probs_ratio_clamped": np.clip(ratio, 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"]).sum() / n,
        "max_seq_mult_prob_error": max(errors), "mean_seq_mult_prob_error": np.mean(errors),
        "min_seq_mult_prob_error": min(errors), "num_valid_samples": len(batch), "kl_penalty": 0.0,
    }
    if o["kl_penalty"] > 0 and not o["kl_in_reward"]:  # the KL term divided by beta, normalized like the loss
        x = np.clip(f - c, -20, 20)
        u = np.exp(c - g) if o["use_on_policy_kl_approximation"] else 1.0
        term = np.clip(u * kl(x, o["kl_type"]), -10, 10)
        if o["token_level_loss"]:
            out["kl_penalty"] = term.sum() / (n + 1e-8)
        else:
            sums = [term[of_answer == i].sum() / ((of_answer == i).sum() + 1e-8) for i in answers]
            out["kl_penalty"] = sum(sums) / (len(batch) + 1e-8)
    if o["truncation"] != "none":
        low, high = o["importance_low"] or 0.0, o["importance_high"]
        w = np.exp(p - g)
        if o["sequence_level_importance_ratios"]:
            w = np.exp([np.sum((p - g)[of_answer == i]) for i in answers])[of_answer]
        if o["truncation"] == "seq-mask-tis":
            w = np.exp([np.mean((p - g)[of_answer == i]) for i in answers])
        out["is_oob_ratio"] = np.mean((w < low) | (w > high))
    return {k: float(v) for k, v in out.items()}


DEFAULTS = {
    "ratio_clip_min": 0.2, "ratio_clip_max": 0.2, "ratio_clip_c": None, "kl_penalty": 0.01, "kl_type": "k3",
    "token_level_loss": True, "force_on_policy_ratio": False, "disable_ppo_ratio": False,
    "sequence_level_importance_ratios": False, "use_cispo": False, "use_on_policy_kl_approximation": False,
    "importance_sampling_correction": False, "truncation": "none", "importance_high": None, "importance_low": None,
    "kl_in_reward": False,
}
CASES = [
    {}, {"kl_penalty": 0}, {"kl_type": "k1", "kl_penalty": 0.5}, {"kl_type": "k2", "kl_penalty": 0.5}, {"kl_penalty": 3.0},
    {"token_level_loss": False}, {"ratio_clip_max": 0.28, "ratio_clip_c": 1.3}, {"force_on_policy_ratio": True},
    {"disable_ppo_ratio": True}, {"token_level_loss": False, "sequence_level_importance_ratios": True},
    {"token_level_loss": False, "sequence_level_importance_ratios": True, "importance_sampling_correction": True},
    {"use_cispo": True}, {"use_on_policy_kl_approximation": True, "kl_penalty": 1.0},
    {"importance_sampling_correction": True},
    {"importance_sampling_correction": True, "truncation": "tis", "importance_high": 1.2},
    {"importance_sampling_correction": True, "truncation": "icepop", "importance_high": 1.2, "importance_low": 0.8},
    {"importance_sampling_correction": True, "truncation": "seq-mask-tis", "importance_high": 1.05, "importance_low": 0.95},
    {"token_level_loss": False, "sequence_level_importance_ratios": True, "importance_sampling_correction": True,
     "truncation": "tis", "importance_high": 1.2},
]


# The KL term is in the advantages, which differ between tokens.
KL_IN_REWARD = [{"kl_in_reward": True, "kl_penalty": 0.4, "ratio_clip_c": 1.3},
                {"kl_in_reward": True, "kl_penalty": 0.4, "token_level_loss": False}]


def policy_cases(random, all_options):
    cases = []
    for options in all_options:
        o = {**DEFAULTS, **options}
        batch = []
        for i in range(5):
            n = [1, 7, 4, 9, 3][i]
            c = (-np.abs(random.normal(size=n)) * 2 - 0.05).astype(np.float32)
            a = {"c": c, "p": (c + random.normal(size=n) * 0.25).astype(np.float32),
                 "f": (c + random.normal(size=n) * 0.5).astype(np.float32), "advantage": float(random.normal() * 1.5),
                 "mask": (random.random(n) > 0.25).astype(int), "weight": 0.0 if i == 4 else 1.0}
            a["g"] = (a["p"] + random.normal(size=n) * 0.2).astype(np.float32)
            if i == 1:
                a["f"][0] = c[0] + 30  # reaches both clamps of the KL term
                a["f"][1] = c[1] + 4
            if i < 2:
                a["mask"][:2] = 1
            if o["kl_in_reward"]:
                a["advantage"] = random.normal(size=n)
            batch.append(a)
        wide = [{**a, **{k: a[k].astype(np.float64) for k in "cpfg"}} for a in batch]
        loss, grad = gradient(wide, o)
        cases.append({"options": o, "loss": loss, "metrics": metrics(wide, o),
                      "answers": [{**{k: [float(x) for x in a[k]] for k in "cpfg"}, "mask": a["mask"].tolist(),
                                   "advantage": np.asarray(a["advantage"]).tolist(), "weight": a["weight"], "gradient": g}
                                  for a, g in zip(batch, grad)]})
    return cases


def group_advantages(rewards, groups, lengths, o):
    r, groups = np.array(rewards), np.array(groups)
    out = np.zeros(len(r))
    for i in range(len(r)):
        members = [j for j in range(len(r)) if groups[j] == groups[i]]
        others = [j for j in members if j != i] if o["leave_one_out"] else members
        if len(members) <= 1:
            continue
        baseline = np.mean(r[others])
        out[i] = r[i] - baseline
        if o["normalize"]:
            n = len(others)
            # equal rewards have no deviation
            s = np.std(r[others], ddof=1) if n > 1 and len(set(r[others])) > 1 else 0.0
            if s > 0:
                out[i] /= s + 1e-6
    if o["whiten"]:
        w = np.repeat(out, lengths)
        out = (out - w.mean()) / np.sqrt(max(w.var(), 1e-8))
    return out.tolist()


def advantage_cases(random):
    cases = []
    for estimator, leave, normalize in [("grpo", 1, 1), ("grpo", 0, 1), ("grpo", 1, 0), ("rloo", 0, 1),
                                        ("reinforce_plus_plus", 1, 1)]:
        o = {"leave_one_out": bool(leave) if estimator == "grpo" else estimator == "rloo",
             "normalize": estimator == "grpo" and bool(normalize), "whiten": estimator == "reinforce_plus_plus"}
        rewards = [1, 0, 0, 0] + [1, 1] + [0.25] + [0.0] * 3 + [float(x) for x in random.normal(size=6)]
        lengths = [int(x) for x in random.integers(1, 20, len(rewards))] + [3] * 20
        rewards += [1.0] + [0.1] * 15 + [0.9] + [0.3] * 3  # not multiples of a power of two
        groups = [7] * 4 + [3] * 2 + [9] + [1] * 3 + [4] * 6 + [5] * 16 + [6] * 4
        cases.append({"estimator": estimator, "leave_one_out": bool(leave), "normalize_rewards": bool(normalize),
                      "rewards": rewards, "groups": groups, "tokens": lengths,
                      "advantages": group_advantages(rewards, groups, lengths, o)})
    return cases


def token_advantage_cases(random):
    """Cases of reinforce_plus_plus with the KL estimate in the reward."""
    cases = []
    for kind in ["k1", "k2", "k3"]:
        rewards = [1.0, 0.0, 0.0, 0.5] + [float(x) for x in random.normal(size=4)] + [0.25]
        groups, beta = [2] * 4 + [5] * 4 + [8], 0.3
        lengths = random.integers(1, 9, len(rewards))
        p = [-np.abs(random.normal(size=n)) for n in lengths]
        f = [x + random.normal(size=len(x)) for x in p]
        p[0][0], f[0][0] = -1.0, -41.0  # reaches both clamps
        p[1][0], f[1][0] = -41.0, -1.0
        mean = {g: np.mean([r for r, other in zip(rewards, groups) if other == g]) for g in groups}
        rows = [(0.0 if groups.count(g) == 1 else r - mean[g]) - beta * np.clip(kl(np.clip(ff - pp, -20, 20), kind), -10, 10)
                for r, g, pp, ff in zip(rewards, groups, p, f)]
        tokens = np.concatenate(rows)
        rows = [(x - tokens.mean()) / np.sqrt(max(tokens.var(), 1e-8)) for x in rows]
        cases.append({"kl_type": kind, "kl_penalty": beta, "rewards": rewards, "groups": groups,
                      "p": [x.tolist() for x in p], "f": [x.tolist() for x in f], "advantages": [x.tolist() for x in rows]})
    return cases


if __name__ == "__main__":
    random = np.random.default_rng(17)
    document = {"policy_loss": policy_cases(random, CASES), "advantages": advantage_cases(random)}
    document["policy_loss"] += policy_cases(random, KL_IN_REWARD)
    document["token_advantages"] = token_advantage_cases(random)
    text = json.dumps(document, separators=(",", ":"))
    with open(sys.argv[1], "w", encoding="utf8") as out:
        out.write(text + "\n")
