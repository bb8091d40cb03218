// Leases: processes on any machines divide work through files in a shared folder, without a connection.
//
// The lease NAME is the file NAME.N with the largest N. Creating the file (O_EXCL) takes the lease. While a process
// lives, it renews its leases by setting the files' times. A lease is free when its holder has released it or has
// ended, or when its time has not changed for the expiry time (the longer one of both processes). Then another process
// takes it by creating NAME.(N+1).
//
// A process that stops for longer than the expiry time may continue afterwards, at the same time as the new holder. So
// all holders must write the same bytes, or files whose names contain N.
#pragma once

#include "base/json.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace nibble {

struct LeaseHolder {
    std::string text;   // "rank 2 (process 4711 on node7)"
    Json facts;         // facts passed to take()
    bool here = false;  // true if its process number is known on this machine, so that `ended` is certain
    bool ended = false;
};

class Leases {
public:
    struct Options {
        std::string who;  // name of this process in messages: "rank 2"
        std::chrono::milliseconds expiry{60'000};
    };

    // `folder` must exist. Starts the thread that renews leases.
    static std::unique_ptr<Leases> open(const std::filesystem::path& folder, const Options& options);
    // Releases all leases.
    ~Leases();
    Leases(const Leases&) = delete;
    Leases& operator=(const Leases&) = delete;

    // Takes a lease; returns its N, or no value while another process holds it. Error: the file cannot be written.
    Result<std::optional<int>> take(const std::string& name, const Json& facts = Json::object());
    void release(const std::string& name);
    // Returns the process that holds or last held a lease. No value: no process ever held it, or it was released.
    std::optional<LeaseHolder> holder(const std::string& name);

private:
    struct Renewal;
    struct Seen {
        int64_t time = -1;  // modification time of the file
        std::chrono::steady_clock::time_point since;
    };
    struct State;

    Leases(std::filesystem::path folder, Options options);
    std::filesystem::path file(const std::string& name, int number) const;
    int last(const std::string& name);
    State look(const std::string& name, int number);

    std::filesystem::path folder_;
    Options options_;
    std::map<std::string, int> last_;                   // the largest N that was seen
    std::map<std::pair<std::string, int>, Seen> seen_;  // times of other processes' leases
    std::unique_ptr<Renewal> renewal_;
};

}  // namespace nibble
