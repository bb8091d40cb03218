// Programs that try to leave the sandbox, to fill it, or not to end.
#include "base/sandbox.h"

#include "support/files.h"

#include <gtest/gtest.h>

#include <fstream>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

TEST(Sandbox, HostileProgramsGetNowhere) {
    const auto sandbox = Sandbox::open();
    if (!sandbox.ok()) GTEST_SKIP() << sandbox.error().message();  // the machine may forbid user namespaces
    struct Case {
        const char* program;
        int status;  // -1: killed
        bool timed_out, flooded;
        const char* output;  // prefix of the output
    };
    const Case cases[] = {
        {"print(sum(range(10)))", 0, false, false, "45\n"},
        {"import sys; print(len(sys.stdin.read()))", 0, false, false, "3000000\n"},
        {"while True: pass", -1, true, false, ""},
        {"import os, time; os.close(1); os.close(2); time.sleep(100)", -1, true, false, ""},
        {"while True: print('x' * 10000)", -1, false, true, "xxx"},
        {"import os\nwhile True: os.fork()", 1, false, false, ""},
        {"import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", 1,
         false, false, ""},
        {"import time; time.sleep(100)", -1, true, false, ""},
        {"import subprocess; subprocess.run(['/bin/true'])", 1, false, false, ""},
        {"x = bytearray(1 << 31)", 1, false, false, ""},
        {"open('/tmp/a', 'wb').write(b'x' * (1 << 25))", 1, false, false, ""},
        {"n = 0\ntry:\n  while True:\n    open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 22)); n += 1\n"
         "except OSError: print(n)",
         0, false, false, "4\n"},
        {"import socket; socket.socket()", 1, false, false, ""},
        {"import urllib.request; urllib.request.urlopen('http://127.0.0.1:80')", 1, false, false, ""},
        {"import os; os.kill(1, 9); print('alive')", 0, false, false, "alive\n"},
        {"import os; print(len([n for n in os.listdir('/') if n not in 'bin dev lib lib32 lib64 libx32 sbin tmp "
         "usr'.split()]))",
         0, false, false, "0\n"},
        {"import os; print(sorted(os.environ))", 0, false, false, "['LANG', 'PATH', 'PWD', 'PYTHONHASHSEED']"},
        {"import ctypes; print(ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) or 'no new privileges')", 0, false, false,
         "no new privileges"},
        {"import ctypes; c = ctypes.CDLL(None); print(c.unshare(0x10000000), c.mount(b'/usr', b'/tmp', None, 4096, "
         "None))",
         0, false, false, "-1 -1\n"},
        {"open('/etc/shadow').read()", 1, false, false, ""},
        {"import os; os.listdir('/work')", 1, false, false, ""},
        {"import os; os.listdir('/home')", 1, false, false, ""},
        {"open('/usr/x', 'w')", 1, false, false, ""},
        {"open('/x', 'w')", 1, false, false, ""},
        {"open('/dev/x', 'w')", 1, false, false, ""},
    };
    const std::string input(3'000'000, 'a');
    for (const Case& c : cases) {
        SCOPED_TRACE(c.program);
        const std::vector<std::string> command{"/usr/bin/python3", "-I", "-c", c.program};
        const SandboxLimits limits{.seconds = c.timed_out ? 1.0 : 20.0};
        const auto run = sandbox->run(command, input, limits);
        ASSERT_TRUE(run.ok()) << run.error().message();
        EXPECT_EQ(run->exit_status, c.status);
        EXPECT_EQ(run->timed_out, c.timed_out);
        EXPECT_EQ(run->flooded, c.flooded);
        EXPECT_EQ(run->output.substr(0, std::string_view(c.output).size()), c.output);
        EXPECT_LE(std::ssize(run->output), limits.output_bytes);
    }
}

// The error on a machine without a sandbox, at once and in one line.
TEST(Sandbox, ASandboxThatIsNotToBeHadIsAnError) {
    const TempDir folder;
    const auto program = [&](const std::string& name, const std::string& text) {
        const fs::path path = folder.path() / name;
        std::ofstream(path) << "#!/bin/sh\n" << text;
        fs::permissions(path, fs::perms::owner_all);
        return path;
    };
    const std::pair<fs::path, std::string> cases[] = {
        {folder.path() / "missing", "there is no " + (folder.path() / "missing").string() + "; install bubblewrap"},
        {program("forbidden", "echo bwrap: No permissions to create new namespace >&2; echo more >&2; exit 1\n"),
         "runs no program here: bwrap: No permissions to create new namespace (are user namespaces forbidden?)"},
        {program("silent", "exit 3\n"), "runs no program here: exit status 3"},
        {program("hangs", "exec sleep 100\n"), "needed more than 5 seconds for the command"},
    };
    for (const auto& [path, message] : cases) {
        const auto sandbox = Sandbox::open(path);
        ASSERT_FALSE(sandbox.ok()) << path;
        EXPECT_NE(sandbox.error().message().find(message), std::string::npos) << sandbox.error().message();
        EXPECT_EQ(sandbox.error().message().find('\n'), std::string::npos);
    }
}

}  // namespace
}  // namespace nibble::test
