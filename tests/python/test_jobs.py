"""Jobs against the program: the same files and reports. Progress, cancelling, Ctrl-C."""

import filecmp
import inspect
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import ROOT

import nibble
from nibble import _core, jobs

SLOW = "nvfp4_w4a4_weight_mse_fp8_sweep"


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


def same_files(a, b, ignore=("nibble.json", "README.md", "nibble-report.json", "nibble-report.html")):
    compared = filecmp.dircmp(a, b, ignore=list(ignore))
    assert not compared.left_only and not compared.right_only
    names = [f for f in os.listdir(a) if f not in ignore]
    match, differ, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    assert not differ and not errors, (differ, errors)


# The keyword of a function by the name of the C++ option, where they are not the same.
@pytest.mark.parametrize("job,function", [
    ("quantize", jobs.quantize_checkpoint), ("convert", jobs.convert), ("import_gguf", jobs.import_gguf),
    ("verify", jobs.verify), ("evaluate", jobs.evaluate), ("search", jobs.search), ("inspect", jobs.inspect),
    ("train", jobs.train), ("reinforce", jobs.reinforce)])
def test_keywords_and_defaults_are_those_of_cpp(job, function):
    options = json.loads(_core.jobs.defaults(job))
    options.pop("text", None) if job in ("train", "reinforce") else None
    keywords = {k: p for k, p in inspect.signature(function).parameters.items() if k not in ("progress", "cancel", "on_step", "judge")}
    assert set(keywords) == set(options)
    for name, parameter in keywords.items():
        if parameter.default is inspect.Parameter.empty:
            continue
        default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        assert default == options[name], name


def test_quantize_writes_the_files_of_the_program(model, run_program, tmp_path):
    run_program("quantize", model, "-o", tmp_path / "program", "--recipe", "nvfp4_four_over_six", "--weights-only", "--quiet")
    seen = []
    report = nibble.quantize_checkpoint(model, tmp_path / "python", "nvfp4_four_over_six", weights_only=True, progress=seen.append)
    same_files(tmp_path / "program", tmp_path / "python")
    assert report.outcome == "written" and report.quantized_tensors == 14 and 4.4 < report.bits_per_quantized_weight < 4.6
    assert "nvfp4_four_over_six" in repr(report) and report.to_dict() and "<pre>" in report._repr_html_()
    for p in seen:
        assert p.phase and p.done <= p.total
    check = nibble.verify(tmp_path / "python", against=model)
    assert check.passed and check.checkpoints[0].sqnr_db > 15 and check.rows()[0]["findings"] == 0
    plan = nibble.quantize_checkpoint(model, tmp_path / "plan", "w4a16_nvfp4", dry_run=True)
    assert plan.outcome == "planned" and not (tmp_path / "plan").exists()
    inspected = nibble.inspect(tmp_path / "python")
    assert json.loads(run_program("inspect", tmp_path / "python", "--json")) == inspected.to_dict()
    assert repr(inspected) == run_program("inspect", tmp_path / "python")
    rows = inspected.rows()
    assert {row["format"] for row in rows} == {"none", "nvfp4"}


def test_calibrate_evaluate_convert_and_search(chat_model, run_program, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Line {i} says hello to the world and the world says hello." for i in range(80)))
    scales = nibble.calibrate(chat_model, "fp8", text, calib_tokens=512, calib_sequence=128)
    assert scales.scales and all(v > 0 for v in scales.scales.values()) and scales.rows()[0]["tensor"]
    nibble.quantize_checkpoint(chat_model, tmp_path / "fp8", "fp8", calib_file=text, calib_tokens=512, calib_sequence=128)
    result = nibble.evaluate(tmp_path / "fp8", against=chat_model, text=text, context=128)
    assert result.value("perplexity") > 1 and result.rows()
    assert [m for m in result.measured if "KL" in m.metric]
    done = nibble.convert(tmp_path / "fp8", tmp_path / "ct", "compressed-tensors")
    assert done.quantized == 14 and nibble.open(tmp_path / "ct").dialect == "compressed-tensors"
    found = nibble.search(chat_model, tmp_path / "mixed.yaml", bits=6, calib_file=text, calib_tokens=256, calib_sequence=128)
    assert found.bits <= 6 and (tmp_path / "mixed.yaml").exists()
    assert len(nibble.recipes().rows()) > 5


def test_train_calls_on_step_and_stops_when_it_says_so(chat_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Line {i} says hello to the world and the world says hello." for i in range(200)))
    steps = []
    config = {"model": chat_model, "output": tmp_path / "run", "steps": 3, "batch": 1, "sequence": 32, "data": {"text": text}}
    run = nibble.train(config, on_step=steps.append)
    assert run.steps == 3 and len(steps) == 3 and steps == run.log
    assert all("loss" in s for s in steps) and run.rows() == steps


def test_errors_are_the_programs_lines(model, tmp_path):
    with pytest.raises(nibble.RecipeError):
        nibble.quantize_checkpoint(model, tmp_path / "out", "no_recipe")
    with pytest.raises(nibble.FileError):
        nibble.quantize_checkpoint(tmp_path / "nothing", tmp_path / "out", "w4a16_nvfp4")
    with pytest.raises(nibble.UsageError, match='threads has a value of a wrong type: "x"'):
        nibble.quantize_checkpoint(model, tmp_path / "out", "w4a16_nvfp4", threads="x")
    with pytest.raises(nibble.UsageError):
        nibble.evaluate(model)


def test_warnings_and_notes_go_to_the_logger(chat_model, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="nibble"):
        text = tmp_path / "short.txt"
        text.write_text("A short text of a few words. " * 20)
        nibble.calibrate(chat_model, "fp8", text)
    assert any("token" in r.getMessage() for r in caplog.records)
    assert logging.getLogger().handlers == [h for h in logging.getLogger().handlers]


@pytest.fixture(scope="session")
def large_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "large"
    subprocess.run([sys.executable, ROOT / "tests/oracles/random_model.py", folder, "--hidden", "1024", "--inner", "4096",
                    "--layers", "6", "--vocab", "1024"], check=True, capture_output=True)
    return folder


def test_cancel_stops_and_resume_continues(large_model, tmp_path):
    cancel = threading.Event()
    out = tmp_path / "out"
    with pytest.raises(nibble.Cancelled):
        nibble.quantize_checkpoint(large_model, out, SLOW, weights_only=True, cancel=cancel, threads=1,
                                   progress=lambda p: cancel.set() if p.done > 0 else None)
    assert not out.exists()
    nibble.quantize_checkpoint(large_model, out, SLOW, weights_only=True, resume=True)
    nibble.quantize_checkpoint(large_model, tmp_path / "whole", SLOW, weights_only=True)
    same_files(out, tmp_path / "whole")


def test_a_callback_that_raises_stops_the_job(large_model, tmp_path):
    def fail(_):
        raise ZeroDivisionError("from the callback")

    with pytest.raises(ZeroDivisionError, match="from the callback"):
        nibble.quantize_checkpoint(large_model, tmp_path / "out", SLOW, weights_only=True, progress=fail)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_a_job_soon(large_model, tmp_path):
    code = textwrap.dedent(f"""
        import signal, sys, time, os, threading, nibble
        sent = []
        def interrupt(p):
            if p.done > 0 and not sent:
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
        try:
            nibble.quantize_checkpoint({str(large_model)!r}, {str(tmp_path / "out")!r}, {SLOW!r}, weights_only=True, progress=interrupt)
            print("finished")
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - sent[0])
        import numpy as np
        nibble.quantize(np.ones((16, 16), np.float32))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    word, seconds = done.stdout.split()
    # 100 ms on an idle machine; test machines are shared.
    assert word == "interrupted" and float(seconds) < 1.0, done.stdout
