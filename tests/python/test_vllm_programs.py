"""Programs in the form of vLLM's offline examples: only the import and the name of the model are changed."""

import pathlib
import re
import subprocess
import sys

import pytest
from test_weights import chat_model  # noqa: F401  (a fixture)

PROGRAMS = pathlib.Path(__file__).parent / "vllm_programs"


@pytest.mark.parametrize("name", sorted(p.stem for p in PROGRAMS.glob("*.py")))
def test_program(name, chat_model, tmp_path):  # noqa: F811
    text = (PROGRAMS / f"{name}.py").read_text()
    assert "nibble" not in text
    text, models = re.subn(r'(?<=model=)"[\w./-]+"', repr(str(chat_model)), text)
    assert models
    (tmp_path / "program.py").write_text("import nibble.vllm\n\nnibble.vllm.alias()\n" + text)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Output" in done.stdout


def test_without_submodules_the_import_alone_is_changed(chat_model, tmp_path):  # noqa: F811
    text = (PROGRAMS / "basic.py").read_text().replace("from vllm import", "from nibble.vllm import")
    (tmp_path / "program.py").write_text(text.replace('"facebook/opt-125m"', repr(str(chat_model))))
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("Output") == 4, done.stderr[-3000:]


def test_options_of_the_command_line_reach_the_model(chat_model, tmp_path):  # noqa: F811
    (tmp_path / "program.py").write_text("import nibble.vllm\n\nnibble.vllm.alias()\n" + (PROGRAMS / "chat.py").read_text())
    words = [sys.executable, tmp_path / "program.py", "--model", chat_model, "--max_model_len=300", "--seed", "3"]
    done = subprocess.run([*words, "--max-tokens", "4", "--no-enable-prefix-caching", "--enforce-eager"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("Output") == 12, done.stderr[-3000:]
    refused = subprocess.run([*words, "--max_model_len", "20"], capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0 and "context of 20" in refused.stderr
    unknown = subprocess.run([*words, "--no-such-option"], capture_output=True, text=True, timeout=300)
    assert unknown.returncode == 2 and "no-such-option" in unknown.stderr
    program = "import nibble.vllm as v; p = v.FlexibleArgumentParser(); v.EngineArgs.add_cli_args(p); p.add_argument('--other');" \
              "a = v.EngineArgs.from_cli_args(p.parse_args(['--model', 'm', '--other', 'x', '--enforce_eager', 'false']));" \
              "assert vars(a) == {'model': 'm', 'enforce_eager': False}, vars(a)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_alias_keeps_an_installed_vllm(tmp_path):
    (tmp_path / "vllm.py").write_text("kind = 'other'\n")
    done = subprocess.run([sys.executable, "-c", "import nibble.vllm\ntry:\n    nibble.vllm.alias()\nexcept nibble.UsageError as e:\n"
                           "    import vllm\n    assert vllm.kind == 'other'\n    print(e)"],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "is installed here" in done.stdout, done.stderr
