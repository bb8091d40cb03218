from vllm import LLM, SamplingParams, TokensPrompt


def main():
    llm = LLM(model="facebook/opt-125m", seed=0, gpu_memory_utilization=0.5, enforce_eager=True)
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Hello, my name is")
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2)
    text, tokens = llm.generate(["Hello, my name is", TokensPrompt(prompt_token_ids=ids)], params)
    assert text.outputs[0].token_ids == tokens.outputs[0].token_ids
    assert text.prompt_logprobs[0] is None and len(text.prompt_logprobs) == len(ids)
    completion = text.outputs[0]
    for token, step in zip(completion.token_ids, completion.logprobs):
        assert 3 <= len(step) <= 4 and step[token].rank == 1
        assert step[token].logprob == max(entry.logprob for entry in step.values())
        print(f"Output: {step[token].decoded_token!r} {step[token].logprob:.3f}")
    total = sum(step[token].logprob for token, step in zip(completion.token_ids, completion.logprobs))
    assert abs(total - completion.cumulative_logprob) < 1e-4


if __name__ == "__main__":
    main()
