"""Runs the agent framework pydantic-ai, unchanged, against a nibble server: `agent_clients.py build/cpu/nibble`

The model of tests/data/chat answers at random. pydantic-ai demands calls, so the grammar forces the schemas of Python's
functions and classes. Requirements: agents end with an object of their output type, with tools, with structured output
and in a stream; their functions are called with arguments of the declared types; a text answer equals its stream.
"""
import asyncio
import enum
import os
import sys
import tempfile

from openai_clients import KEY, Server  # runs itself again in .venv where it must
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tool_clients import FORMATS, model_folder


class Unit(enum.Enum):
    celsius = "C"
    fahrenheit = "F"


class Weather(BaseModel):
    unit: Unit
    rain: bool


def model_at(url):
    return OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url + "/v1", api_key=KEY))


SETTINGS = {"max_tokens": 400, "temperature": 0.7, "seed": 3}


def test_tools(url):
    asked = []

    async def once(_, tool):  # a model with random weights would call forever
        return None if asked else tool

    agent = Agent(model_at(url), output_type=Weather, model_settings=SETTINGS)

    @agent.tool_plain(prepare=once)
    def is_warm(unit: Unit, now: bool) -> str:
        """Return whether it is warm."""
        asked.append((unit, now))
        return "yes"

    for seed in range(20):  # the model chooses which of the two functions is called first
        result = agent.run_sync("how warm is it?", model_settings={**SETTINGS, "seed": seed})
        assert isinstance(result.output, Weather), result.output
        if asked:
            break
    assert asked and all(isinstance(u, Unit) and isinstance(n, bool) for u, n in asked), asked
    parts = [part.part_kind for message in result.all_messages() for part in message.parts]
    # the tool's result was sent back to the model
    assert "tool-return" in parts[: len(parts) - parts[::-1].index("tool-call")], parts


def test_structured_output(url):
    agent = Agent(model_at(url), output_type=NativeOutput(Weather), model_settings=SETTINGS)
    result = agent.run_sync("how warm is it?")
    assert isinstance(result.output, Weather) and result.output.unit in Unit


def test_text_stream(url):
    agent = Agent(model_at(url), model_settings={"max_tokens": 40, "temperature": 0.7, "seed": 5}, instructions="be short")
    whole = agent.run_sync("hello").output

    async def streamed():
        async with agent.run_stream("hello") as answer:
            return "".join([piece async for piece in answer.stream_text(delta=True, debounce_by=None)])

    assert asyncio.run(streamed()) == whole and whole


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        server = Server(sys.argv[1], model_folder(os.path.join(work, "model"), FORMATS["hermes"]))
        for name, test in list(globals().items()):
            if not name.startswith("test_"):
                continue
            try:
                test(server.url)
                print(f"{name}: passed")
            except Exception as error:
                failed += 1
                print(f"{name}: {type(error).__name__}: {error}")
        server.stop()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
