"""Real FP4 in five lines: weights in 4.5 bits, and a product with them."""

import numpy as np

import nibble

weight = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
x = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)

q = nibble.quantize(weight, "nvfp4", four_over_six=True)
y = nibble.matmul(x, q)
exact = x @ weight.T
print(q)
print(f"error of the product: {np.linalg.norm(y - exact) / np.linalg.norm(exact):.3f} of its norm")
