"""Answers in process, with vLLM's names: python answers.py MODEL"""

import sys

from nibble.vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is"]
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16)
with LLM(model=sys.argv[1]) as llm:
    for output in llm.generate(prompts, params):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
