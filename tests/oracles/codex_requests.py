"""Replays recorded requests of Codex CLI: `codex_requests.py build/cpu/nibble`

tests/data/codex/*.json are conversations that codex-cli recorded against a scripted server (local paths replaced): the
complete first request, and the items that each later request adds to its input. `namespaces` has tools of the types
function, namespace and web_search; `custom_tools` has function, custom (with a grammar) and tool_search. Both send back
a call with truncated arguments. Requirements: every request gets a stream that ends with a response of known items; the
log mentions once what the server cannot run.
"""
import json
import os
import pathlib
import re
import sys
import tempfile
import urllib.request

from openai_clients import KEY, SECONDS, Server  # runs itself again in .venv where it must
from tool_clients import FORMATS, model_folder

# for the last request plus 250 tokens; limits the model's answers
CONTEXTS = {"custom_tools": 37500, "namespaces": 42500}
DATA = pathlib.Path(__file__).parent.parent / "data" / "codex"


def large_context(folder, context):
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": context}))
    return folder


def stream(url, recorded, body):
    headers = {**recorded["headers"], "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url + recorded["path"], json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        text = answer.read().decode()
    return [json.loads(data) for data in re.findall(r"^data: (.*)$", text, re.M)]


def check_stream(events, body):
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") > 0
    response = events[-1]["response"]
    spaces = {tool["name"] for tool in body["tools"] if tool["type"] == "namespace"}
    for item in response["output"]:
        assert item["type"] in ("message", "function_call", "custom_tool_call"), item
        assert item.get("namespace") in {None, *spaces}, item
    assert response["store"] is False and response["usage"]["input_tokens"] > 30000, response["usage"]


def replay(program, path):
    recorded = json.loads(path.read_text())
    body = recorded["body"]
    with tempfile.TemporaryDirectory() as work:
        folder = large_context(model_folder(os.path.join(work, "model"), FORMATS["hermes"]), CONTEXTS[path.stem])
        server = Server(program, folder, names=("tiny", "gpt-5.2"))
        for items in [[], *recorded["later_input"]]:
            body["input"] += items
            check_stream(stream(server.url, recorded, body), body)
        server.stop()
    notes = " ".join(json.loads(line)["note"] for line in server.lines if '"note"' in line)
    hosted = {tool["type"] for tool in body["tools"]} - {"function", "namespace", "custom"}
    assert hosted and sorted(re.findall("type (\\w+)", notes)) == sorted(hosted), notes
    print(f"{path.stem}: {1 + len(recorded['later_input'])} requests answered", flush=True)


def main():
    for path in sorted(DATA.glob("*.json")):
        replay(sys.argv[1], path)


if __name__ == "__main__":
    sys.exit(main())
