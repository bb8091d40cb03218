"""Runs the official clients of OpenAI and Anthropic against a nibble server: `openai_clients.py build/cpu/nibble`

Starts `nibble serve` with tests/data/chat at a free port and runs every function whose name begins with test_. Exit
status 77: the packages are not installed (tools/setup --test installs them into .venv).
"""
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
VENV = os.path.join(ROOT, ".venv", "bin", "python")
try:
    import anthropic
    import openai
except ImportError:
    if os.path.exists(VENV) and not os.environ.get("NIBBLE_IN_VENV"):
        os.execve(VENV, [VENV, *sys.argv], {**os.environ, "NIBBLE_IN_VENV": "1"})
    print("the packages openai and anthropic are not installed")
    sys.exit(77)

HELLO = [{"role": "user", "content": "hello"}]
KEY = "a-key"
SECONDS = 300.0


class Server:
    def __init__(self, program, model=os.path.join(HERE, "..", "data", "chat"), names=("tiny",)):
        self.lines = []
        self.keys = tempfile.NamedTemporaryFile("w")
        self.keys.write("# who may ask\r\n\n  key-of-a-file \r\n\tother\n")
        self.keys.flush()
        self.process = subprocess.Popen(
            [program, "serve", model, "--port", "0", "--api-key", KEY, "--api-key-file", self.keys.name, "--kv-memory", "64MB",
             "--served-model-name", *names],
            stderr=subprocess.PIPE, text=True)
        found = threading.Event()
        self.url = None

        def read():
            for line in self.process.stderr:
                self.lines.append(line)
                match = re.search(r"is served at (http://\S+)", line)
                if match:
                    self.url = match.group(1)
                    found.set()
            found.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        found.wait(SECONDS)
        assert self.url, "".join(self.lines)

    def stop(self):
        self.process.terminate()
        status = self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        assert status == 0, f"the server ended with {status}"


def one(client, **more):
    return client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0, **more})


def test_models(client, _):
    models = client.models.list().data
    assert models[0].id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"


def test_names(client, _):
    assert [m.id for m in client.models.list().data] == ["tiny", "second", "third"]
    for name in ("second", "third"):
        assert client.models.retrieve(name).id == name
        assert one(client, model=name).model == "tiny"
        assert client.responses.create(model=name, input="hello", max_output_tokens=2).model == "tiny"
        assert client.completions.create(model=name, prompt="hello", max_tokens=2).model == "tiny"
    expect(openai.NotFoundError, lambda: one(client, model="fourth"))


def test_chat(client, _):
    answer = one(client, seed=1)
    assert answer.object == "chat.completion" and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].message.content == one(client, seed=1).choices[0].message.content


def test_chat_stream(client, _):
    whole = one(client)
    text, usage, finish = "", None, None
    for chunk in one(client, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert finish == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_chat_stream_helper(client, _):
    text = ""
    with client.chat.completions.stream(model="tiny", messages=HELLO, max_tokens=8, temperature=0) as stream:
        try:
            for event in stream:
                if event.type == "content.delta":
                    text += event.delta
        except openai.LengthFinishReasonError:  # the helper's way to report that max_tokens was reached
            pass
    assert text == one(client).choices[0].message.content


def test_logprobs(client, _):
    answer = one(client, logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 4
        assert token.logprob == token.top_logprobs[0].logprob  # greedy
        assert token.logprob <= 0


def test_choices(client, _):
    answer = one(client, n=5, temperature=1, seed=3)
    assert [c.index for c in answer.choices] == list(range(5))
    assert len({c.message.content for c in answer.choices}) > 1


def test_extra_parameters(client, _):
    extra = {"top_k": 3, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True, "return_token_ids": True}
    answer = one(client, extra_body=extra)
    assert len(answer.choices[0].model_extra["token_ids"]) == 8


def test_completions(client, _):
    whole = client.completions.create(model="tiny", prompt="once", max_tokens=6, temperature=0, logprobs=2)
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
    stream = client.completions.create(model="tiny", prompt="once", max_tokens=6, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream) == whole.choices[0].text
    several = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=2, n=2)
    assert len(several.choices) == 4
    echo = client.completions.create(model="tiny", prompt="once", max_tokens=2, echo=True)
    assert "once" in echo.choices[0].text


def test_responses(client, _):
    whole = client.responses.create(model="tiny", input="hello", max_output_tokens=8, temperature=0, instructions="be brief")
    assert whole.status in ("completed", "incomplete") and whole.usage.output_tokens > 0
    text, last = "", None
    for event in client.responses.create(model="tiny", input=HELLO, max_output_tokens=8, temperature=0, stream=True,
                                         instructions="be brief"):
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert text == whole.output_text
    assert last.type == "response." + last.response.status
    assert last.response.output_text == text
    assert client.responses.create(model="tiny", input="hello", max_output_tokens=8, temperature=0, instructions="be brief",
                                   reasoning={"effort": "low"}, text={"verbosity": "low"}).output_text == text


def test_prediction(client, _):
    plain = one(client, temperature=0)
    said = plain.choices[0].message.content
    predicted = one(client, temperature=0, prediction={"type": "content", "content": said}, verbosity="low", reasoning_effort="low")
    assert predicted.choices[0].message.content == said
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens >= 0


def expect(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def test_errors(client, server):
    wrong = expect(openai.BadRequestError, lambda: one(client, temperature=-1))
    assert wrong.param == "temperature" and "temperature" in str(wrong)
    expect(openai.NotFoundError, lambda: one(client, model="other"))
    expect(openai.BadRequestError, lambda: one(client, extra_body={"tempereture": 1}))
    long = expect(openai.BadRequestError, lambda: one(client, messages=[{"role": "user", "content": "x" * 9000}]))
    assert "maximum context length" in str(long) and long.code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    expect(openai.AuthenticationError, stranger.models.list)
    for key in ("key-of-a-file", "other"):
        openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0).models.list()
    for key in ("# who may ask", "key-of-a-fil"):
        expect(openai.AuthenticationError, openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0).models.list)


def test_cancellation(client, _):
    for _round in range(5):
        stream = one(client, stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    assert one(client).choices


def test_async_with_200_at_once(client, server):
    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, timeout=SECONDS, max_retries=0) as many:
            async def ask(seed):
                stream = seed % 2 == 1
                made = await many.chat.completions.create(model="tiny", messages=HELLO, max_tokens=8, seed=seed % 10, stream=stream)
                if not stream:
                    return made.choices[0].message.content
                return "".join([c.choices[0].delta.content or "" async for c in made])
            return await asyncio.gather(*(ask(i) for i in range(200)))

    answers = asyncio.run(run())
    for i, answer in enumerate(answers):
        assert answer == answers[i % 10], i
    assert answers[0] == one(client, seed=0, temperature=1).choices[0].message.content


def test_anthropic(_, server):
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY, timeout=SECONDS, max_retries=0)
    ask = {"model": "tiny", "max_tokens": 8, "system": "be brief", "messages": HELLO, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**ask)
    assert whole.type == "message" and whole.content[0].type == "text"
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens > 0
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == whole.stop_reason
    counted = client.messages.count_tokens(model="tiny", system="be brief", messages=HELLO)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    wrong = expect(anthropic.BadRequestError, lambda: client.messages.create(**{**ask, "max_tokens": -1}))
    assert wrong.body["type"] == "error" and wrong.body["error"]["type"] == "invalid_request_error"
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    expect(anthropic.AuthenticationError, lambda: stranger.messages.create(**ask))
    expect(anthropic.NotFoundError, lambda: client.messages.create(**{**ask, "model": "other"}))
    # The answer continues a last message of the assistant.
    begun = [*HELLO, {"role": "assistant", "content": "I am"}]
    on = client.messages.create(**{**ask, "messages": begun})
    with client.messages.stream(**{**ask, "messages": begun}) as stream:
        events = list(stream)
    assert stream.get_final_message().content[0].text == on.content[0].text
    assert events[-1].type == "message_stop" and stream.get_final_message().usage.output_tokens == on.usage.output_tokens
    raw = list(client.messages.create(**{**ask, "messages": begun}, stream=True))
    assert raw[-1].type == "message_stop" and raw[-1].timings["predicted_n"] == on.usage.output_tokens


def test_anthropic_thinking(_, server):
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree(os.path.join(HERE, "..", "data", "chat"), os.path.join(folder, "model"))
        config = os.path.join(model, "tokenizer_config.json")
        with open(config) as f:
            tokenizer = json.load(f)
        tokenizer["chat_template"] = ("{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<mask>{% endfor %}<s>assistant\n<think>"
                                      "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}")
        with open(config, "w") as f:
            json.dump(tokenizer, f)
        thinker = Server(sys.argv[1], model)
        client = anthropic.Anthropic(base_url=thinker.url, api_key=KEY, timeout=SECONDS, max_retries=0)
        ask = {"model": "tiny", "max_tokens": 64, "messages": HELLO, "extra_body": {"temperature": 0, "ignore_eos": True}}
        budget = {"type": "enabled", "budget_tokens": 5}
        whole = client.messages.create(**ask, thinking=budget)
        assert [block.type for block in whole.content] == ["thinking", "text"], whole
        with client.messages.stream(**ask, thinking=budget) as stream:
            assert "thinking_delta" in {e.delta.type for e in stream if e.type == "content_block_delta"}
        streamed = stream.get_final_message().content
        assert streamed[0].thinking == whole.content[0].thinking and streamed[1].text == whole.content[1].text
        off = client.messages.create(**ask, thinking={"type": "disabled"})
        assert [block.type for block in off.content] == ["text"], off
        again = [*HELLO, {"role": "assistant", "content": [block.model_dump() for block in whole.content]}, HELLO[0]]
        assert client.messages.create(**{**ask, "messages": again}, thinking=budget).usage.input_tokens > 0
        thinker.stop()


def main():
    server = Server(sys.argv[1], names=("tiny", "second", "third"))
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, timeout=SECONDS, max_retries=0)
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test(client, server)
            print(f"{name}: ok", flush=True)
        except Exception as error:  # continue with the next test
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    try:
        server.stop()
    except AssertionError as error:
        failed += 1
        print(error)
    if failed:  # the server's output, without the log of requests
        print("".join([line for line in server.lines if not line.startswith("{")][-200:]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
