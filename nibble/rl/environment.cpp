#include "rl/environment.h"

#include "rl/environment_process.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <poll.h>

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

// Returns a random 53-bit id. A program cannot predict it and so cannot reply before it has read the request. Languages
// whose numbers are doubles return it unchanged.
int64_t unguessable_id() {
    static_assert(sizeof(std::random_device::result_type) >= 4);
    thread_local std::random_device source;
    const uint64_t high = source() & 0x1FFFFF, low = source() & 0xFFFFFFFF;
    return static_cast<int64_t>(high << 32 | low);
}

Result<EnvironmentReply> parse_reply(const std::string& line, int64_t id) {
    NIBBLE_TRY(const Json json, parse_json(line).within("the environment's reply"));
    if (!json.is_object()) return fail("the environment's reply is not an object");
    if (json.value("id", Json()) != Json(id)) return fail("the environment's reply has another id than {}", id);
    EnvironmentReply reply;
    for (const auto& [key, value] : json.items()) {
        if (key == "reward" && value.is_number())
            reply.reward = value.get<double>();
        else if (key == "done" && value.is_boolean())
            reply.done = value.get<bool>();
        else if (key == "observation" && value.is_string())
            reply.observation = value.get<std::string>();
        else if (key == "state")
            reply.state = value;
        else if (key != "id")
            return fail("the environment's reply has a field '{}' that is unknown or of a wrong type", key);
    }
    if (!json.contains("reward")) return fail("the environment's reply has no reward");
    NIBBLE_CHECK(check_reply(reply));
    return reply;
}

class FunctionEnvironment : public Environment {
public:
    explicit FunctionEnvironment(JudgeFunction function) : function_(std::move(function)) {}

    std::vector<EnvironmentReply> judge(const std::vector<EnvironmentRequest>& requests) override {
        std::vector<EnvironmentReply> replies = function_(requests);
        if (replies.size() != requests.size())
            return std::vector<EnvironmentReply>(
                requests.size(), {.failure = fmt::format("the environment gave {} replies to {} requests",
                                                         replies.size(), requests.size())});
        for (EnvironmentReply& reply : replies)
            if (const Status usable = check_reply(reply); !reply.failure && !usable)
                reply = {.failure = usable.error().message()};
        return replies;
    }

private:
    JudgeFunction function_;
};

class ProgramEnvironment : public Environment {
public:
    explicit ProgramEnvironment(EnvironmentProgram program)
        : program_(std::move(program)), seats_(static_cast<size_t>(program_.processes)) {}

    Status start_all() {
        for (Seat& seat : seats_) NIBBLE_CHECK(start(seat));
        return Ok{};
    }

    std::vector<EnvironmentReply> judge(const std::vector<EnvironmentRequest>& requests) override {
        std::vector<EnvironmentReply> replies(requests.size());
        size_t next = 0, open = requests.size();
        while (open > 0 && !stopped()) {
            for (Seat& seat : seats_)
                if (!seat.request && next < requests.size())
                    open -= !begin(seat, next, requests[next], replies), ++next;
            wait();
            for (Seat& seat : seats_)
                if (seat.request) open -= go_on(seat, replies);
        }
        for (Seat& seat : seats_)
            if (seat.request) give_up(seat, replies, "the run was stopped");
        for (; next < requests.size(); ++next) replies[next].failure = "the run was stopped";
        return replies;
    }

private:
    struct Seat {
        std::optional<EnvironmentProcess> process;
        std::optional<size_t> request;
        int64_t id = 0;
        std::string line;
        std::string_view rest;  // part of the line that is not sent yet
        Clock::time_point deadline;
    };

    bool stopped() const { return program_.stop && program_.stop->load(); }

    Status start(Seat& seat) const {
        NIBBLE_TRY(auto process, EnvironmentProcess::start(program_.command));
        seat.process.emplace(std::move(process));
        return Ok{};
    }

    // Returns false if the request has failed already.
    bool begin(Seat& seat, size_t index, const EnvironmentRequest& request, std::vector<EnvironmentReply>& replies) {
        if (!seat.process)
            if (const Status started = start(seat); !started) {
                replies[index].failure = started.error().message();
                return false;
            }
        if (seat.process->has_spoken()) {
            seat.process.reset();
            replies[index].failure = "the environment wrote a line before it got a request";
            return false;
        }
        seat.id = unguessable_id();
        // Invalid UTF-8 in generated text becomes replacement characters.
        seat.line = Json{{"id", seat.id},        {"prompt", request.prompt}, {"expected", request.expected},
                         {"text", request.text}, {"turn", request.turn},     {"state", request.state}}
                        .dump(-1, ' ', false, Json::error_handler_t::replace) +
                    "\n";
        seat.rest = seat.line, seat.request = index, seat.deadline = Clock::now() + program_.timeout;
        return true;
    }

    // Waits until a process is readable or writable, until the first deadline, or until the stop flag must be checked.
    void wait() const {
        std::vector<pollfd> polled;
        auto until = program_.stop ? Clock::now() + std::chrono::milliseconds(100) : Clock::time_point::max();
        for (const Seat& seat : seats_)
            if (seat.request) {
                polled.push_back(
                    {seat.process->descriptor(), static_cast<short>(POLLIN | (seat.rest.empty() ? 0 : POLLOUT)), 0});
                until = std::min(until, seat.deadline);
            }
        if (polled.empty()) return;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
        ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    }

    // Returns true if the request is done.
    bool go_on(Seat& seat, std::vector<EnvironmentReply>& replies) {
        const bool asked = seat.rest.empty();  // a reply to an incomplete request is an error
        Result<bool> whole = seat.process->receive(program_.most_reply_bytes);
        if (whole && *whole && !asked) whole = fail("the environment replied before it got the whole request");
        if (const Status sent = seat.process->send(seat.rest); !sent && whole && !*whole) whole = sent.error();
        if (whole && !*whole) {
            if (Clock::now() < seat.deadline) return false;
            whole = fail("the environment gave no reply within {} ms", program_.timeout.count());
        }
        Result<EnvironmentReply> reply =
            whole ? parse_reply(seat.process->take_line(), seat.id) : Result<EnvironmentReply>(whole.error());
        if (!reply) return give_up(seat, replies, reply.error().message());
        replies[*seat.request] = *std::move(reply);
        seat.request.reset();
        return true;
    }

    bool give_up(Seat& seat, std::vector<EnvironmentReply>& replies, std::string why) {
        replies[*seat.request].failure = std::move(why);
        seat.process.reset();  // anything it writes later would belong to this request
        seat.request.reset();
        return true;
    }

    EnvironmentProgram program_;
    std::vector<Seat> seats_;
};

}  // namespace

Status check_reply(const EnvironmentReply& reply) {
    if (!std::isfinite(reply.reward)) return fail("the environment's reward is {}, not a number", reply.reward);
    if (!reply.done && reply.observation.empty())
        return fail("the environment's reply has neither 'done': true nor an observation");
    return Ok{};
}

std::unique_ptr<Environment> function_environment(JudgeFunction function) {
    return std::make_unique<FunctionEnvironment>(std::move(function));
}

Result<std::unique_ptr<Environment>> start_environment(const EnvironmentProgram& program) {
    if (program.processes < 1 || program.processes > 256)
        return fail("environment: {} processes: must be 1 to 256", program.processes);
    if (program.timeout.count() < 1) return fail("environment: the timeout must be at least 1 ms");
    if (program.most_reply_bytes < 64) return fail("environment: replies need at least 64 bytes");
    auto environment = std::make_unique<ProgramEnvironment>(program);
    NIBBLE_CHECK(environment->start_all());
    return std::unique_ptr<Environment>(std::move(environment));
}

}  // namespace nibble
