"""Quantization-aware training of a small torch model: the linears compute with NVFP4 numbers, gradients pass through."""

import torch

import nibble.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
teacher = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
print("trained under NVFP4:", nibble.torch.fake_quantize_linears(model, "nvfp4"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(512, 64)
target = teacher(x).detach()
for step in range(100):
    loss = torch.nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == 99:
        print(f"step {step}: loss {loss.item():.4f}")
trained = model(x)
print("quantized:", nibble.torch.convert_linears(model, "nvfp4"))
print(f"largest difference after quantization: {(model(x) - trained).abs().max():.1e}")
