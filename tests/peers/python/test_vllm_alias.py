"""lm-evaluation-harness's own adapter of vLLM runs over nibble.vllm, with the numbers of its model "hf"."""

import json
import subprocess
import sys
import textwrap

import pytest
from test_lm_eval_adapter import agree, model, without_bos, write_tasks  # noqa: F401  (a fixture)


@pytest.mark.parametrize("adds", [True, False], ids=["bos", "plain"])
def test_lm_evals_vllm_adapter(model, tmp_path, adds):  # noqa: F811
    write_tasks(tmp_path)
    folder = model if adds else without_bos(model, tmp_path / "plain")
    # The adapter cuts texts two tokens before the context ends, the model "hf" at the end.
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(f"""
        import nibble.vllm
        nibble.vllm.alias()
        import json, lm_eval, lm_eval.tasks
        from lm_eval.models.vllm_causallms import VLLM
        from importlib.metadata import version
        assert version("vllm") == nibble.vllm.__version__
        manager = lm_eval.tasks.TaskManager(include_path={str(tmp_path)!r}, include_defaults=False)
        run = dict(tasks=["tiny_choices", "tiny_rolling", "tiny_words"], task_manager=manager, log_samples=True)
        ours = lm_eval.simple_evaluate(model=VLLM(pretrained={str(folder)!r}, dtype="float32", max_length=50), **run)
        theirs = lm_eval.simple_evaluate(model="hf", model_args="pretrained={folder},dtype=float32,max_length=48", device="cpu", **run)
        print("RESULT " + json.dumps([{{k: r[k] for k in ("results", "samples")}} for r in (ours, theirs)], default=str))
    """)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    agree(*json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT ")))
