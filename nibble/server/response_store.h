// Answers of /v1/responses that were stored, for previous_response_id and for clients that ask for them again. The
// memory is bounded: the least recently used ones are forgotten first.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class StoredResponse;
using StoredPtr = std::shared_ptr<const StoredResponse>;

// One answer, with what was asked for it. The conversation before it is a chain, which later answers share.
class StoredResponse {
public:
    // `input` and `response` as JSON.
    StoredResponse(StoredPtr previous, std::string input, std::string response,
                   std::shared_ptr<std::atomic<int64_t>> bytes);
    ~StoredResponse();
    StoredResponse(const StoredResponse&) = delete;
    StoredResponse& operator=(const StoredResponse&) = delete;

    Json input() const;                                        // the items of its request
    const std::string& response() const { return response_; }  // as JSON, as the client received it
    // The items of the conversation up to and with the answer. Error: they have more than `most_bytes` as JSON.
    Result<Json> conversation(size_t most_bytes) const;

private:
    mutable StoredPtr previous_;
    std::string input_, response_;  // as JSON
    std::shared_ptr<std::atomic<int64_t>> bytes_;
};

// Used by several threads.
class ResponseStore {
public:
    // Forgets others until all that is kept has `most_bytes` at most. `input`: a list of items, as JSON.
    void keep(StoredPtr previous, std::string input, const Json& response, int64_t most_bytes);
    // Null: there is none, or it was forgotten.
    StoredPtr find(const std::string& id);
    bool forget(const std::string& id);
    // An item of a stored answer's output, by its id.
    std::optional<Json> item(const std::string& id);
    int64_t bytes() const { return *bytes_; }

private:
    struct Entry {
        std::string id;
        StoredPtr response;
        std::vector<std::string> items;  // ids of the output's
    };
    using Place = std::list<Entry>::iterator;
    void erase(Place place);

    std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
    std::mutex mutex_;
    std::list<Entry> entries_;  // the latest first
    std::unordered_map<std::string, Place> by_id_, by_item_;
};

}  // namespace nibble
