"""Agents as their users start them, against a server of ours: `test_agents.py build/cpu/nibble [WORD]`

Each agent is installed into an environment of its own below .cache/load_tools; one that cannot be installed is reported as skipped, by
name. The model answers at random, so an agent's work is nonsense. What must hold: the server refuses none of its requests (the log has
no status but 200), and the agent ends by itself. Exit status 77: nothing could be run.
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
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        folder = model_folder(os.path.join(work, "tiny"), context=65536, template=TEMPLATE)
        return run_tests({name: functools.partial(run, name, program, folder) for name in AGENTS})


if __name__ == "__main__":
    sys.exit(main())
