#include "base/child_process.h"

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace nibble {
namespace {

std::vector<char*> child_pointers(const std::vector<std::string>& list) {
    std::vector<char*> out;
    for (const std::string& one : list) out.push_back(const_cast<char*>(one.c_str()));
    out.push_back(nullptr);
    return out;
}

// The files to try for a program, as execvp() tries them.
std::vector<std::string> program_files(const std::string& program) {
    if (program.find('/') != program.npos) return {program};
    const char* path = std::getenv("PATH");
    std::string_view rest = path ? path : "/usr/local/bin:/usr/bin:/bin";
    std::vector<std::string> files;
    while (true) {
        const std::string_view folder = rest.substr(0, rest.find(':'));
        files.push_back((folder.empty() ? "." : std::string(folder)) + "/" + program);
        if (folder.size() == rest.size()) return files;
        rest.remove_prefix(folder.size() + 1);
    }
}

// Everything that the child needs, made before vfork(): the child shares this process's memory and only makes system
// calls.
struct ChildPlan {
    std::vector<std::string> files;
    std::vector<char*> arguments, variables;
    std::vector<ChildProgram::Redirection> redirections;
    bool own_group = false, ends_with_parent = true;
    sigset_t blocked{};  // signals that are blocked in the child
    pid_t parent = 0;
};

bool apply(const ChildProgram::Redirection& r) {
    int from = r.from;
    if (from == ChildProgram::null_device) from = ::open("/dev/null", O_RDWR);
    if (from < 0) return false;
    if (from == r.to) return ::fcntl(from, F_SETFD, 0) == 0;
    const bool done = ::dup2(from, r.to) >= 0;
    if (r.from == ChildProgram::null_device) ::close(from);
    return done;
}

// The child's part. Returns only where a call failed, with errno set.
void become(const ChildPlan& plan) {
    if (plan.ends_with_parent) {
        if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
        if (::getppid() != plan.parent) ::_exit(127);  // it ended before the call above
    }
    if (plan.own_group && ::setpgid(0, 0) != 0) return;
    for (const ChildProgram::Redirection& r : plan.redirections)
        if (!apply(r)) return;
    if (plan.own_group) {
        ::signal(SIGPIPE, SIG_DFL);
        ::signal(SIGINT, SIG_DFL);
    }
    if (::sigprocmask(SIG_SETMASK, &plan.blocked, nullptr) != 0) return;
    int why = ENOENT;
    for (const std::string& file : plan.files) {
        ::execve(file.c_str(), plan.arguments.data(), plan.variables.data());
        if (errno == EACCES) why = EACCES;
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
    }
    errno = why;
}

// Returns the child's id, or 0 and the reason. vfork(): a fork() would copy the page tables of a loaded model.
__attribute__((noinline)) pid_t start(const ChildPlan& plan, int& error) {
    volatile int failed = 0;
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler runs in the child
    const pid_t child = ::vfork();
    if (child == 0) {
        become(plan);
        failed = errno;
        ::_exit(127);
    }
    error = child < 0 ? errno : failed;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error == 0) return child;
    if (child > 0)
        while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
        }
    return 0;
}

// The kernel kills the children of a thread when the thread ends, so one thread that never ends starts them all.
class ChildStarter {
public:
    ChildStarter() {
        std::thread([this] { serve(); }).detach();
    }

    void run(const std::function<void()>& work) {
        const std::lock_guard turn(one_caller_);
        std::unique_lock lock(mutex_);
        work_ = &work;
        changed_.notify_all();
        changed_.wait(lock, [&] { return work_ == nullptr; });
    }

private:
    [[noreturn]] void serve() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return work_ != nullptr; });
            (*work_)();
            work_ = nullptr;
            changed_.notify_all();
        }
    }

    std::mutex one_caller_, mutex_;
    std::condition_variable changed_;
    const std::function<void()>* work_ = nullptr;
};

ChildStarter& child_starter() {
    static std::mutex mutex;
    static ChildStarter* starter = nullptr;  // never deleted: its thread uses it until the process ends
    static pid_t process = 0;
    const std::lock_guard lock(mutex);
    if (process != ::getpid()) starter = new ChildStarter;  // a forked process has no thread of the old one
    process = ::getpid();
    return *starter;
}

}  // namespace

Result<pid_t> start_child(const ChildProgram& program) {
    if (program.words.empty() || program.words[0].empty()) return fail("no program");
    ChildPlan plan{.files = program_files(program.words[0]),
                   .arguments = child_pointers(program.words),
                   .redirections = program.redirections,
                   .own_group = program.own_group,
                   .ends_with_parent = program.ends_with_parent,
                   .parent = ::getpid()};
    if (program.variables)
        plan.variables = child_pointers(*program.variables);
    else
        for (char** v = environ; *v; ++v) plan.variables.push_back(*v);
    if (!program.variables) plan.variables.push_back(nullptr);
    ::sigemptyset(&plan.blocked);
    if (!program.own_group) ::pthread_sigmask(SIG_SETMASK, nullptr, &plan.blocked);
    pid_t child = 0;
    int error = 0;
    child_starter().run([&] { child = start(plan, error); });
    if (child == 0) return fail("{}", std::strerror(error));
    return child;
}

}  // namespace nibble
