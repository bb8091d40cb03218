"""New weights for a model that answers: python new_weights.py MODEL"""

import sys

import ml_dtypes
import numpy as np

import nibble
from nibble.vllm import LLM, SamplingParams

checkpoint = nibble.open(sys.argv[1], framework="numpy")
params = SamplingParams(temperature=0, max_tokens=8)
with LLM(sys.argv[1]) as llm:
    print("before:", repr(llm.generate("The capital of France is", params)[0].outputs[0].text))
    norm = checkpoint.tensor("model.norm.weight").view(ml_dtypes.bfloat16).astype(np.float32)
    llm.update_weights({"model.norm.weight": -norm}, version="negated")
    print(f"after ({llm.weight_version}):", repr(llm.generate("The capital of France is", params)[0].outputs[0].text))
