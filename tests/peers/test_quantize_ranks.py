"""Runs tests/oracles/quantize_ranks.py on every family of the archive, with 50 kills.

    test_quantize_ranks.py NIBBLE
"""
import os
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
program = os.path.abspath(sys.argv[1])
library = os.path.join(os.path.dirname(program), "tests", "libkill_at.so")
command = [sys.executable, os.path.join(here, "..", "oracles", "quantize_ranks.py"), program]
sys.exit(subprocess.run([*command, *([library] if os.path.exists(library) else []), "--all"]).returncode)
