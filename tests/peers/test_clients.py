"""Runs client libraries against a nibble server: `test_clients.py build/cpu/nibble [WORD]`

litellm, LangChain, LlamaIndex and instructor are installed into one environment below .cache/load_tools. The model
answers at random, so calls are demanded and structured output is constrained by its schema. Requirements for each
library: an answer, the same answer as a stream, a call with arguments of the function's types, its result sent back,
and an object of the requested class. Exit status 77: nothing could run.
"""
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

from peer_server import SECONDS, TEMPLATE, Server, environment, model_folder, run_tests

PACKAGES = ("litellm==1.110.2 langchain-openai==1.7.4 llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1 instructor==1.17.0")

COMMON = """
import os
from typing import Literal
from pydantic import BaseModel, Field

URL = os.environ["OPENAI_BASE_URL"]

class Weather(BaseModel):
    "The weather of a city."
    unit: Literal["C", "F"]
    code: str = Field(pattern="^[A-C]{3}$")
    rain: bool

def weather(unit: Literal["C", "F"], now: bool) -> str:
    "How warm it is."
    return "20"

def check(arguments):
    assert set(arguments) == {"unit", "now"} and arguments["unit"] in ("C", "F") and arguments["now"] in (True, False), arguments

ASK = [{"role": "user", "content": "how warm is it?"}]
FREE = {"max_tokens": 30, "temperature": 0.7, "seed": 5}
HELD = {**FREE, "max_tokens": 300}
"""
SCRIPTS = {
    "litellm": """
import json
import litellm
ask = dict(model="openai/tiny", api_base=URL, api_key="x", messages=ASK)
whole = litellm.completion(**ask, **FREE).choices[0].message.content
pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**ask, **FREE, stream=True)]
assert whole and "".join(pieces) == whole and len(pieces) > 5, (whole, pieces)
tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["unit", "now"], "properties": {
    "unit": {"enum": ["C", "F"]}, "now": {"type": "boolean"}}}}}]
answer = litellm.completion(**ask, **HELD, tools=tools, tool_choice="required", parallel_tool_calls=False).choices[0]
call = answer.message.tool_calls[0]
assert answer.finish_reason == "tool_calls" and call.function.name == "weather"
check(json.loads(call.function.arguments))
chunks = list(litellm.completion(**ask, **HELD, tools=tools, tool_choice="required", parallel_tool_calls=False, stream=True))
streamed = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
assert streamed.function.arguments == call.function.arguments
back = ASK + [answer.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "20"}]
assert litellm.completion(**{**ask, "messages": back}, **FREE, tools=tools).choices[0].message is not None
Weather.model_validate_json(litellm.completion(**ask, **HELD, response_format=Weather).choices[0].message.content)
assert litellm.text_completion(model="text-completion-openai/tiny", api_base=URL, api_key="x", prompt="hello", max_tokens=5).choices[0].text
assert litellm.responses(model="openai/tiny", api_base=URL, api_key="x", input="hello", max_output_tokens=5).output
""",
    "langchain": """
from langchain_openai import ChatOpenAI
from langchain_core.messages import HumanMessage, ToolMessage

def model(**more):
    return ChatOpenAI(model="tiny", base_url=URL, api_key="x", **more)

whole = model(**FREE).invoke("how warm is it?")
pieces = [chunk.content for chunk in model(**FREE).stream("how warm is it?")]
assert whole.content and "".join(pieces) == whole.content and len(pieces) > 5, (whole, pieces)
assert whole.usage_metadata["output_tokens"] > 0
bound = model(**HELD).bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
answer = bound.invoke("how warm is it?")
check(answer.tool_calls[0]["args"])
joined = None
for chunk in bound.stream("how warm is it?"):
    joined = chunk if joined is None else joined + chunk
assert [c["args"] for c in joined.tool_calls] == [c["args"] for c in answer.tool_calls]
history = [HumanMessage("how warm is it?"), answer, ToolMessage("20", tool_call_id=answer.tool_calls[0]["id"])]
assert model(**FREE).bind_tools([weather], strict=True).invoke(history) is not None
for method in ("json_schema", "function_calling"):
    assert isinstance(model(**HELD).with_structured_output(Weather, method=method).invoke("how warm is it?"), Weather)
responses = model(use_responses_api=True, max_tokens=30, temperature=0)  # the Responses API has no seed
assert responses.invoke("hello").text
assert "".join(chunk.text for chunk in responses.stream("hello"))
""",
    "llamaindex": """
from llama_index.core import PromptTemplate
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

def model(max_tokens):
    return OpenAILike(model="tiny", api_base=URL, api_key="x", is_chat_model=True, is_function_calling_model=True, context_window=16384,
                      max_tokens=max_tokens, temperature=0.7, additional_kwargs={"seed": 5})

ask = [ChatMessage(role="user", content="how warm is it?")]
whole = model(30).chat(ask).message.content
pieces = [piece.delta or "" for piece in model(30).stream_chat(ask)]
assert whole and "".join(pieces) == whole and len(pieces) > 5, (whole, pieces)
llm, tool = model(300), FunctionTool.from_defaults(weather)
answer = llm.chat_with_tools([tool], user_msg="how warm is it?", tool_required=True)
call = llm.get_tool_calls_from_response(answer)[0]
check(call.tool_kwargs)
*_, last = llm.stream_chat_with_tools([tool], user_msg="how warm is it?", tool_required=True)
assert llm.get_tool_calls_from_response(last)[0].tool_kwargs == call.tool_kwargs
back = ask + [answer.message, ChatMessage(role="tool", content="20", additional_kwargs={"tool_call_id": call.tool_id})]
assert model(30).chat_with_tools([tool], chat_history=back) is not None
assert isinstance(llm.structured_predict(Weather, PromptTemplate("how warm is it?")), Weather)
assert isinstance(llm.as_structured_llm(Weather).chat(ask).raw, Weather)
""",
    "instructor": """
import instructor
from openai import OpenAI
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(base_url=URL, api_key="x"), mode=mode)
    ask = dict(model="tiny", messages=ASK, response_model=Weather, max_retries=0, **HELD)
    assert isinstance(client.chat.completions.create(**ask), Weather), mode
    *_, last = client.chat.completions.create_partial(**ask)
    assert last.unit in ("C", "F") and last.rain in (True, False), (mode, last)
""",
}


def run(name, program, folder):
    programs = environment("clients", PACKAGES)
    server = Server(program, folder)
    try:
        with tempfile.TemporaryDirectory() as work:
            file = pathlib.Path(work) / "client.py"
            file.write_text(COMMON + SCRIPTS[name])
            result = subprocess.run([programs / "python", file], cwd=work, text=True, capture_output=True, timeout=SECONDS,
                                    env={**os.environ, "OPENAI_BASE_URL": server.url + "/v1", "OPENAI_API_KEY": "x",
                                         "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    finally:
        server.stop()
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        folder = model_folder(os.path.join(work, "tiny"), context=16384, template=TEMPLATE)
        return run_tests({name: functools.partial(run, name, program, folder) for name in SCRIPTS})


if __name__ == "__main__":
    sys.exit(main())
