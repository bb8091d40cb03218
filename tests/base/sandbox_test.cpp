// Programs that try to leave the sandbox, to fill it, or not to end.
#include "base/sandbox.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

TEST(Sandbox, HostileProgramsGetNowhere) {
    const auto sandbox = Sandbox::open();
    if (!sandbox.ok()) GTEST_SKIP() << sandbox.error().message();
    struct Case {
        const char* program;
        int status;  // -1: killed
        bool timed_out, flooded;
        const char* output;  // what it begins with
    };
    const Case cases[] = {
        {"print(sum(range(10)))", 0, false, false, "45\n"},
        {"import sys; print(len(sys.stdin.read()))", 0, false, false, "3000000\n"},
        {"while True: pass", -1, true, false, ""},
        {"import os, time; os.close(1); os.close(2); time.sleep(100)", -1, true, false, ""},
        {"while True: print('x' * 10000)", -1, false, true, "xxx"},
        {"import os\nwhile True: os.fork()", 1, false, false, ""},
        {"import subprocess; subprocess.run(['/bin/true'])", 1, false, false, ""},
        {"x = bytearray(1 << 31)", 1, false, false, ""},
        {"open('/tmp/a', 'wb').write(b'x' * (1 << 25))", 1, false, false, ""},
        {"n = 0\ntry:\n  while True:\n    open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 22)); n += 1\n"
         "except OSError: print(n)", 0, false, false, "4\n"},
        {"import socket; socket.socket()", 1, false, false, ""},
        {"open('/etc/shadow').read()", 1, false, false, ""},
        {"import os; os.listdir('/work')", 1, false, false, ""},
        {"import os; os.listdir('/home')", 1, false, false, ""},
        {"open('/usr/x', 'w')", 1, false, false, ""},
        {"open('/x', 'w')", 1, false, false, ""},
        {"open('/dev/x', 'w')", 1, false, false, ""},
    };
    const SandboxLimits limits{.seconds = 3};
    const std::string input(3'000'000, 'a');
    for (const Case& c : cases) {
        SCOPED_TRACE(c.program);
        const std::vector<std::string> command{"/usr/bin/python3", "-I", "-c", c.program};
        const auto run = sandbox->run(command, input, limits);
        ASSERT_TRUE(run.ok()) << run.error().message();
        EXPECT_EQ(run->exit_status, c.status);
        EXPECT_EQ(run->timed_out, c.timed_out);
        EXPECT_EQ(run->flooded, c.flooded);
        EXPECT_EQ(run->output.substr(0, std::string_view(c.output).size()), c.output);
        EXPECT_LE(std::ssize(run->output), limits.output_bytes);
    }
}

}  // namespace
}  // namespace nibble::test
