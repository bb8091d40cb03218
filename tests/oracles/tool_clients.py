"""Tests tools through the official clients of OpenAI and Anthropic, in every format of calls: `tool_clients.py
build/cpu/nibble`

The model of tests/data/chat gets a chat template for each format. Its answers are random, so calls are demanded and the
grammar enforces the tool's schema. Requirements: arguments fit the schema; a joined stream equals the complete answer;
a conversation with calls and results is accepted; arguments arrive in pieces. Exit status 77: the packages are not
installed.
"""
import json
import os
import pathlib
import shutil
import sys
import tempfile

from openai_clients import KEY, SECONDS, Server, anthropic, expect, openai  # runs itself again in .venv where it must

SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "now": {"type": "boolean"}, "note": {"type": "string", "maxLength": 6}},
          "required": ["unit", "now", "note"], "additionalProperties": False}
ASK = [{"role": "user", "content": "how warm is it?"}]
# The template contains the text that identifies a format; earlier calls and results are written as JSON.
TEMPLATE = ("{% if tools %}<s>system\n{{ tools | tojson }}MARK<mask>{% endif %}"
            "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] or '' }}"
            "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %}<mask>{% endfor %}"
            "{% if add_generation_prompt %}<s>assistant\n{% endif %}")
FORMATS = {"hermes": "<tool_call>{\\\"name\\\": f}</tool_call>", "tagged": "<tool_call><function=f>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]",
           "nemotron": "<TOOLCALL>", "deepseek_v3": "<｜tool▁calls▁begin｜>"}


def model_folder(folder, mark):
    shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "chat"), folder)
    path = pathlib.Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = TEMPLATE.replace("MARK", mark.replace("\\\"", '"'))
    path.write_text(json.dumps(config))
    return folder


def check(arguments):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(value) == {"unit", "now", "note"} and value["unit"] in ("C", "F") and value["now"] in (True, False), value
    assert isinstance(value["note"], str) and len(value["note"]) <= 6, value


def test_chat(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, timeout=SECONDS, max_retries=0)
    tools = [{"type": "function", "function": {"name": "weather", "description": "of today", "parameters": SCHEMA}}]
    ask = {"model": "tiny", "messages": ASK, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False,
           "max_tokens": 300, "temperature": 0.7, "seed": 3}
    answer = client.chat.completions.create(**ask).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    call = answer.message.tool_calls[0]
    assert call.function.name == "weather" and call.type == "function"
    check(call.function.arguments)
    pieces, names, count = {}, {}, 0
    for chunk in client.chat.completions.create(**ask, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            pieces[piece.index] = pieces.get(piece.index, "") + (piece.function.arguments or "")
            count += bool(piece.function.arguments)
            if piece.function.name:
                names[piece.index] = piece.function.name
    assert names == {0: "weather"} and pieces == {0: call.function.arguments}, pieces
    assert count > 3, f"the arguments came in {count} pieces"
    more = ASK + [answer.message.model_dump(exclude_none=True),
                  {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}]
    last = client.chat.completions.create(model="tiny", messages=more, tools=tools, tool_choice="none", max_tokens=4)
    assert last.usage.prompt_tokens > 0 and not last.choices[0].message.tool_calls
    # One of two tools is allowed: the request equals one with this tool alone.
    two = [{"type": "function", "function": {"name": "other", "parameters": {}}}] + tools
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}}
    only = client.chat.completions.create(**{**ask, "tools": two, "tool_choice": allowed})
    assert only.choices[0].message.tool_calls[0].function == call.function, only
    assert only.usage.prompt_tokens == client.chat.completions.create(**ask).usage.prompt_tokens


def test_messages(url):
    client = anthropic.Anthropic(base_url=url, api_key=KEY, timeout=SECONDS, max_retries=0)
    tools = [{"name": "weather", "description": "of today", "input_schema": SCHEMA}]
    ask = {"model": "tiny", "messages": ASK, "tools": tools, "max_tokens": 300, "extra_body": {"temperature": 0.7, "seed": 3},
           "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    answer = client.messages.create(**ask)
    assert answer.stop_reason == "tool_use", answer
    call = [block for block in answer.content if block.type == "tool_use"][0]
    assert call.name == "weather"
    check(call.input)
    with client.messages.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds.count("input_json") > 3 and kinds.count("content_block_start") == kinds.count("content_block_stop"), kinds
    assert [b.input for b in final.content if b.type == "tool_use"] == [call.input] and final.stop_reason == "tool_use"
    named = client.messages.create(**{**ask, "tool_choice": {"type": "tool", "name": "weather"}})
    assert [b.name for b in named.content if b.type == "tool_use"][:1] == ["weather"]
    more = ASK + [{"role": "assistant", "content": [b.model_dump() for b in answer.content]},
                  {"role": "user", "content": [
                      {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "20 degrees"}]},
                      {"type": "text", "text": "and tomorrow?"}]}]
    last = client.messages.create(model="tiny", messages=more, tools=tools, tool_choice={"type": "none"}, max_tokens=4)
    assert all(b.type == "text" for b in last.content)
    counted = client.messages.count_tokens(model="tiny", messages=more, tools=tools)
    assert counted.input_tokens > client.messages.count_tokens(model="tiny", messages=more).input_tokens
    for wrong, where in (({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "[0].type"),
                         ({"tools": [{"name": "f"}]}, "[0].input_schema"),
                         ({"tool_choice": {"type": "tool", "name": "other"}}, "no tool 'other'"),
                         ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
                          "messages[0].content[0].tool_use_id"),
                         ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
                          "messages[0].content[0]")):
        said = str(expect(anthropic.BadRequestError, lambda: client.messages.create(**{**ask, **wrong})))
        assert where in said, said


def test_responses(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, timeout=SECONDS, max_retries=0)
    tools = [{"type": "function", "name": "weather", "description": "of today", "parameters": SCHEMA, "strict": True}]
    ask = {"model": "tiny", "input": ASK, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False,
           "max_output_tokens": 300, "temperature": 0.7, "extra_body": {"seed": 3}}
    answer = client.responses.create(**ask)
    call = [item for item in answer.output if item.type == "function_call"][0]
    assert answer.status == "completed" and call.name == "weather" and call.status == "completed"
    check(call.arguments)
    pieces, count, done, last = "", 0, None, None
    for event in client.responses.create(**ask, stream=True):
        if event.type == "response.function_call_arguments.delta":
            pieces += event.delta
            count += 1
        if event.type == "response.function_call_arguments.done":
            done = event.arguments
        last = event
    assert pieces == done == call.arguments and count > 3, count
    assert [i.arguments for i in last.response.output if i.type == "function_call"] == [call.arguments]
    more = ASK + [{"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
                  {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}]
    last = client.responses.create(model="tiny", input=more, tools=tools, tool_choice="none", max_output_tokens=4)
    assert last.output_text is not None and last.usage.input_tokens > 0
    two = [{"type": "function", "name": "other", "parameters": {}, "strict": True}] + tools
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    only = client.responses.create(**{**ask, "tools": two, "tool_choice": allowed})
    assert [item.arguments for item in only.output if item.type == "function_call"] == [call.arguments], only
    for wrong, where in (({"tools": [{"type": "magic"}]}, "[0].type"),
                         ({"tool_choice": {"type": "function", "name": "other"}}, "no tool 'other'"),
                         ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]}}, "is empty"),
                         ({"input": [{"type": "function_call", "name": "f"}]}, "[0]"),
                         ({"input": [{"type": "computer_call"}]}, "[0]")):
        said = str(expect(openai.BadRequestError, lambda: client.responses.create(**{**ask, **wrong})))
        assert where in said, said


def main():
    failed = 0
    for name, mark in FORMATS.items():
        with tempfile.TemporaryDirectory() as work:
            server = Server(sys.argv[1], model_folder(os.path.join(work, "model"), mark))
            for test in (test_chat, test_messages, test_responses):
                try:
                    test(server.url)
                    print(f"{name} {test.__name__}: ok", flush=True)
                except Exception as error:  # continue with the next one
                    failed += 1
                    print(f"{name} {test.__name__}: FAILED: {type(error).__name__}: {error}", flush=True)
            server.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
