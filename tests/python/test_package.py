"""The package itself: imports, program, facts, processes."""

import os
import subprocess
import sys
import textwrap

import nibble


def python(code, **options):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, **options)


def test_import_loads_neither_numpy_nor_torch():
    done = python("""
        import sys, os
        before = dict(os.environ)
        import nibble
        assert "numpy" not in sys.modules and "torch" not in sys.modules, "a library was loaded"
        assert dict(os.environ) == before
        nibble.quantize(memoryview(bytes(64)).cast("f"))
        assert "numpy" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists():
    for name in dir(nibble):
        getattr(nibble, name)


def test_program_and_console_script(program):
    expected = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    for command in ([sys.executable, "-m", "nibble"], [os.path.join(os.path.dirname(sys.executable), "nibble")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout == expected, done.stderr
        assert subprocess.run([*command, "nonsense"], capture_output=True).returncode != 0


def test_build_info():
    info = nibble.build_info()
    assert info["version"] == nibble.__version__
    assert "CPU only" in info["cuda"] and "ref" in info["cpu_kernels"] and info["threads"] >= 1
    assert info["program"] and os.access(info["program"], os.X_OK)


def test_a_forked_child_quantizes():
    done = python("""
        import os, numpy as np, nibble
        x = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
        expected = nibble.quantize(x).codes.tobytes()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if nibble.quantize(x).codes.tobytes() == expected else 3)
        assert os.waitpid(pid, 0)[1] == 0
        assert nibble.quantize(x).codes.tobytes() == expected
    """)
    assert done.returncode == 0, done.stderr


def test_spawned_processes_quantize():
    done = python("""
        import multiprocessing as mp, numpy as np, nibble
        if __name__ == "__main__":
            x = np.ones((64, 64), np.float32)
            nibble.quantize(np.ones((512, 1024), np.float32))
            with mp.get_context("spawn").Pool(2) as pool:
                for q in pool.map(nibble.quantize, [x] * 4):
                    assert q.codes.tobytes() == nibble.quantize(x).codes.tobytes()
    """)
    assert done.returncode == 0, done.stderr


def test_exit_with_work_in_flight():
    done = python("""
        import threading, time, numpy as np, nibble
        x = np.ones((4096, 4096), np.float32)
        def work():
            while True:
                nibble.quantize(x, search="mse")
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """)
    assert done.returncode == 0 and done.stderr == "", done.stderr
