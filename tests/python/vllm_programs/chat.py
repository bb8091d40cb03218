from vllm import LLM, EngineArgs
from vllm.sampling_params import SamplingParams


def main():
    engine_args = EngineArgs(model="meta-llama/Llama-3.2-1B-Instruct")
    llm = LLM(model=engine_args.model)
    sampling_params = llm.get_default_sampling_params()
    sampling_params.max_tokens = 12
    sampling_params.temperature = 0.5
    sampling_params.seed = 3
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": "Write an essay about the importance of higher education."},
    ]
    first = llm.chat(conversation, sampling_params, use_tqdm=False)
    batch = llm.chat(messages=[conversation for _ in range(10)], sampling_params=SamplingParams(temperature=0, max_tokens=8), use_tqdm=True)
    assert len({o.outputs[0].text for o in batch}) == 1
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    other = llm.chat(conversation, sampling_params, use_tqdm=False, chat_template=template)
    for output in [*first, *batch, *other]:
        print(f"Prompt tokens: {len(output.prompt_token_ids)}")
        print(f"Output: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
