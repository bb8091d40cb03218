from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

prefix = ("You are an expert school principal, skilled in effectively managing faculty and staff. Draft 10-15 questions for a "
          "potential first grade Head Teacher for my K-12, all-girls', independent school that emphasizes community. ")
prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]
generating_prompts = [prefix + prompt for prompt in prompts]
sampling_params = SamplingParams(temperature=0.0, max_tokens=8)


def main():
    regular_llm = LLM(model="facebook/opt-125m", gpu_memory_utilization=0.4, enable_prefix_caching=False)
    outputs = regular_llm.generate(generating_prompts, sampling_params)
    regular_generated_texts = [output.outputs[0].text for output in outputs]
    assert all(not output.num_cached_tokens for output in outputs)
    del regular_llm
    cleanup_dist_env_and_memory()

    prefix_cached_llm = LLM(model="facebook/opt-125m", enable_prefix_caching=True, gpu_memory_utilization=0.4)
    prefix_cached_llm.generate(generating_prompts[0], sampling_params)
    outputs = prefix_cached_llm.generate(generating_prompts, sampling_params)
    cached_generated_texts = [output.outputs[0].text for output in outputs]
    assert any(output.num_cached_tokens for output in outputs)
    assert cached_generated_texts == regular_generated_texts
    print(f"Output: the same texts with the cache: {cached_generated_texts == regular_generated_texts}")


if __name__ == "__main__":
    main()
