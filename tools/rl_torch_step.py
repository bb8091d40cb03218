#!/usr/bin/env python3
"""Baseline of `tools/rl-speed --torch`: a GRPO step in plain transformers and PyTorch, without a serving engine.

tools/rl_torch_step.py MODEL OUT.json --prompts 32 --answers 16 --tokens 256 --steps 4

It uses everything that makes it faster, even if nibble does not: BF16 weights and AdamW states (no FP32 masters), fused
AdamW, sdpa attention, TF32, no forward pass for the old log-probabilities (the ratio is 1 in the first update), answers
of equal length in a micro-batch as large as memory allows. Questions have the form of `data: {task: sum}`, so prompts
have equal lengths.
"""
import argparse, json, random, statistics, time
import torch, transformers

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('model')
    p.add_argument('output')
    for name, default in (('prompts', 32), ('answers', 16), ('tokens', 256), ('steps', 4), ('micro_batch', 64)): p.add_argument(f'--{name}', type=int, default=default)
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = transformers.AutoTokenizer.from_pretrained(a.model, padding_side='left')
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16, attn_implementation='sdpa').cuda()
    end = model.config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-6, weight_decay=0.01, fused=True)
    draw, steps = random.Random(1), []
    for _ in range(a.steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        texts = [f'What is {draw.randint(1, 9)} + {draw.randint(1, 9)}?\n' for _ in range(a.prompts)]
        prompts = torch.tensor([tokenizer(t)['input_ids'] for t in texts]).cuda()
        with torch.inference_mode():
            rows = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=a.tokens, min_new_tokens=0,
                                  num_return_sequences=a.answers, pad_token_id=end, eos_token_id=end)
        torch.cuda.synchronize()
        generated = time.perf_counter()
        rows, width = rows.clone(), prompts.shape[1]
        answers = rows[:, width:]
        # up to the end token
        mask = torch.cat([torch.ones_like(answers[:, :1], dtype=torch.bool), (answers[:, :-1] != end).cumprod(1).bool()], 1)
        rewards = torch.rand(len(rows), device='cuda').view(a.prompts, a.answers)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        total = mask.sum()
        for part in range(0, len(rows), a.micro_batch):
            some = slice(part, part + a.micro_batch)
            logits = model(rows[some]).logits[:, width - 1:-1]
            logs = torch.log_softmax(logits.float(), -1).gather(-1, answers[some].unsqueeze(-1)).squeeze(-1)
            ratio = torch.exp(logs - logs.detach())
            loss = -torch.min(ratio * advantages[some], ratio.clamp(0.8, 1.2) * advantages[some])
            ((loss * mask[some]).sum() / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        ended = time.perf_counter()
        steps.append({'seconds': ended - began, 'generate_seconds': generated - began, 'train_seconds': ended - generated, 'generated_tokens': int(total)})
    found = {k: statistics.median(s[k] for s in steps[1:]) for k in steps[0]}
    found['program'] = f'torch {torch.__version__}, transformers {transformers.__version__}'
    with open(a.output, 'w') as file: json.dump(found, file)

if __name__ == '__main__':
    main()
