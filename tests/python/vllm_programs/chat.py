from vllm import LLM, EngineArgs
from vllm.outputs import RequestOutput
from vllm.utils.argparse_utils import FlexibleArgumentParser


def parser_of_options():
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="meta-llama/Llama-3.2-1B-Instruct")
    group = parser.add_argument_group("Sampling")
    group.add_argument("--max-tokens", type=int)
    group.add_argument("--temperature", type=float)
    group.add_argument("--top-p", type=float)
    return parser


def show(outputs: list[RequestOutput]):
    for output in outputs:
        print(f"Prompt tokens: {len(output.prompt_token_ids)}")
        print(f"Output: {output.outputs[0].text!r}")


def main(options: dict):
    given = {name: options.pop(name) for name in ("max_tokens", "temperature", "top_p")}
    llm = LLM(**options)
    sampling_params = llm.get_default_sampling_params()
    for name, value in given.items():
        if value is not None:
            setattr(sampling_params, name, value)
    conversation = [
        {"role": "system", "content": "You answer in one sentence"},
        {"role": "user", "content": "Good morning"},
        {"role": "assistant", "content": "Good morning! What is it about?"},
        {"role": "user", "content": "Why is the sky blue?"},
    ]
    show(llm.chat(conversation, sampling_params, use_tqdm=False))
    sampling_params.temperature = 0
    batch = llm.chat(messages=[conversation for _ in range(10)], sampling_params=sampling_params, use_tqdm=True)
    assert len({o.outputs[0].text for o in batch}) == 1
    show(batch)
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    show(llm.chat(conversation, sampling_params, use_tqdm=False, chat_template=template))


if __name__ == "__main__":
    main(vars(parser_of_options().parse_args()))
