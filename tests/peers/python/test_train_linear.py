"""nibble.torch.TrainLinear: the products of `nibble train` as an autograd function."""

import pathlib
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
import transformers

import nibble
from nibble.torch import TrainLinear, train_linears

ROOT = pathlib.Path(__file__).resolve().parents[3]


def layer(recipe, seed=0, inputs=64, outputs=32):
    torch.manual_seed(0)
    return TrainLinear(inputs, outputs, recipe=recipe, seed=seed)


def run(linear, x, dy):
    x = x.clone().requires_grad_()
    linear.zero_grad()
    y = linear(x)
    y.backward(dy)
    return y.detach(), x.grad, linear.weight.grad.clone(), linear.bias.grad.clone()


X, DY = (torch.randn(48, n, generator=torch.Generator().manual_seed(n)) for n in (64, 32))


@pytest.mark.parametrize("recipe,bound", [("fp32", 1e-6), ("bf16", 5e-3), ("fp8", 0.06), ("fp8_block", 0.06), ("mxfp8", 0.06),
                                          ("nvfp4", 0.25), ("nvfp4_no_rht", 0.25)])
def test_the_error_is_that_of_the_format(recipe, bound):
    got, expected = run(layer(recipe), X, DY), run(layer("fp32"), X, DY)
    w = layer("fp32").weight.detach()
    exact = (F.linear(X, w, layer("fp32").bias.detach()), DY @ w, DY.T @ X, DY.sum(0))
    for name, a, b, c in zip(("y", "dx", "dw", "db"), got, expected, exact):
        assert (b - c).norm() / c.norm() < 1e-5, name
        error = float((a - c).norm() / c.norm())
        assert error < (bound if name != "db" else 1e-6), (name, error)
        if bound > 0.01 and name != "db":
            assert error > bound / 30, (name, "nothing is rounded")


def test_draws_depend_on_seed_and_step_alone():
    linear = layer("nvfp4")
    first, second = run(linear, X, DY), run(linear, X, DY)
    assert torch.equal(first[0], second[0]) and not torch.equal(first[1], second[1]), "a new step draws again"
    again = layer("nvfp4")
    assert all(torch.equal(a, b) for a, b in zip(first, run(again, X, DY)))
    again.load_state_dict(linear.state_dict())
    third = run(linear, X, DY)
    assert all(torch.equal(a, b) for a, b in zip(third, run(again, X, DY))), "the state_dict holds the step"
    assert not torch.equal(run(layer("nvfp4", seed=1), X, DY)[1], first[1])
    # Stochastic rounding has the gradient as its mean. These weights are NVFP4 numbers, so that they are not rounded.
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6])
    with torch.no_grad():
        linear.weight.copy_(grid[torch.randint(0, 15, linear.weight.shape, generator=torch.Generator().manual_seed(5))] / 8)
        linear.weight[:, ::16] = 6 / 8  # the largest of each block
    assert torch.allclose(nibble.quantize(linear.weight.detach()).dequantize(), linear.weight.detach(), rtol=1e-6)
    many = torch.stack([run(linear, X, DY)[1] for _ in range(64)])
    exact = DY @ linear.weight.detach()
    assert (many.mean(0) - exact).norm() < 0.25 * (many[0] - exact).norm()


def test_shapes_types_and_compilation():
    linear = layer("nvfp4").to(torch.bfloat16)
    x = X.to(torch.bfloat16).reshape(2, 24, 64)
    y = linear(x)
    assert y.shape == (2, 24, 32) and y.dtype == torch.bfloat16
    linear.eval()
    assert torch.equal(torch.compile(linear, fullgraph=True, backend="aot_eager")(x), linear(x))
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.nibble.train_linear, (X.clone().requires_grad_(), layer("mxfp8").weight, "mxfp8", 0, 0, torch.zeros((), dtype=torch.int64)),
                          test_utils=checks)
    with pytest.raises(nibble.UsageError, match="keeps a state"):
        layer("fp8_delayed")
    with pytest.raises(nibble.UsageError):
        layer("no_recipe")


STEPS, BATCH, SEQ = 30, 2, 64


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder / "model"], check=True)
    (folder / "text.txt").write_text("\n".join(f"Line {i} says hello to the world and the world says hello to line {i}." for i in range(400)))
    return folder


def loss_of_nibble(data, recipe):
    config = {"model": str(data / "model"), "output": str(data / f"run-{recipe}"), "steps": STEPS, "batch": BATCH, "sequence": SEQ,
              "precision": recipe, "data": {"text": str(data / "text.txt")}, "optimizer": {"learning_rate": 3e-3, "weight_decay": 0.0},
              "schedule": {"kind": "constant", "warmup": 0}}
    losses = []
    nibble.train(config, on_step=lambda step: losses.append(step["loss"]))
    return losses


def loss_of_torch(data, recipe):
    model = transformers.AutoModelForCausalLM.from_pretrained(data / "model", dtype=torch.float32)
    assert len(train_linears(model, recipe)) == 14
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained(data / "model").encode((data / "text.txt").read_text()))
    losses = []
    for step in range(STEPS):
        at = step * BATCH * SEQ
        rows = torch.stack([ids[at + r * SEQ:at + r * SEQ + SEQ + 1] for r in range(BATCH)])
        logits = model(rows[:, :-1]).logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8", "nvfp4"])
def test_the_loss_curve_is_that_of_nibble_train(data, recipe):
    ours, theirs = loss_of_torch(data, recipe), loss_of_nibble(data, recipe)
    assert len(ours) == len(theirs) == STEPS and theirs[-1] < 0.8 * theirs[0]
    end = [sum(x[-5:]) / 5 for x in (ours, theirs)]
    assert abs(end[0] - end[1]) < 0.05 * end[1], (ours, theirs)
