// Stored answers of /v1/responses, for previous_response_id and for clients that fetch them again. Memory is bounded;
// the least recently used answers are removed first.
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

// One answer with the items of its request. It refers to the answer before it; later answers share the chain of a
// conversation.
class StoredResponse {
public:
    // `input` and `response`: JSON text.
    StoredResponse(StoredPtr previous, std::string input, std::string response,
                   std::shared_ptr<std::atomic<int64_t>> bytes);
    ~StoredResponse();
    StoredResponse(const StoredResponse&) = delete;
    StoredResponse& operator=(const StoredResponse&) = delete;

    Json input() const;                                        // items of its request
    const std::string& response() const { return response_; }  // JSON text as sent to the client
    // Returns the items of the conversation including this answer. Error: more than `most_bytes` of JSON.
    Result<Json> conversation(size_t most_bytes) const;

private:
    mutable StoredPtr previous_;
    std::string input_, response_;  // JSON text
    std::shared_ptr<std::atomic<int64_t>> bytes_;
};

// Thread-safe.
class ResponseStore {
public:
    // Stores an answer and removes others until at most `most_bytes` are stored. `input`: a list of items, as JSON
    // text.
    void keep(StoredPtr previous, std::string input, const Json& response, int64_t most_bytes);
    // Returns the answer; null: it does not exist, or was removed.
    StoredPtr find(const std::string& id);
    bool forget(const std::string& id);
    // Returns an output item of a stored answer by its id.
    std::optional<Json> item(const std::string& id);
    int64_t bytes() const { return *bytes_; }

private:
    struct Entry {
        std::string id;
        StoredPtr response;
        std::vector<std::string> items;  // ids of the output's items
    };
    using Place = std::list<Entry>::iterator;
    void erase(Place place);

    std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
    std::mutex mutex_;
    std::list<Entry> entries_;  // latest first
    std::unordered_map<std::string, Place> by_id_, by_item_;
};

}  // namespace nibble
