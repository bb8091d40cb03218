"""lm-evaluation-harness's own adapter of vLLM runs over nibble.vllm."""

import subprocess
import sys
import textwrap

from test_lm_eval_adapter import model, write_tasks  # noqa: F401  (a fixture)


def test_lm_evals_vllm_adapter(model, tmp_path):  # noqa: F811
    write_tasks(tmp_path)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(f"""
        import nibble.vllm
        nibble.vllm.alias()
        import lm_eval, lm_eval.tasks
        from lm_eval.models.vllm_causallms import VLLM
        from importlib.metadata import version
        assert version("vllm") == nibble.vllm.__version__
        manager = lm_eval.tasks.TaskManager(include_path={str(tmp_path)!r}, include_defaults=False)
        run = dict(tasks=["tiny_choices", "tiny_rolling", "tiny_words"], task_manager=manager, log_samples=True)
        theirs = lm_eval.simple_evaluate(model=VLLM(pretrained={str(model)!r}, dtype="auto"), **run)
        scores = [r[0] for s in theirs["samples"]["tiny_choices"] for r in s["filtered_resps"]]
        assert len(scores) == 12 and all(-200 < float(x) < 0 for x in scores), scores
        assert all(isinstance(s["filtered_resps"][0], str) for s in theirs["samples"]["tiny_words"])
        assert theirs["results"]["tiny_rolling"]["bits_per_byte,none"] > 0
    """)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
