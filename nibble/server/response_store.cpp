#include "server/response_store.h"

#include "server/api_error.h"

namespace nibble {
namespace {

Json parsed(const std::string& text) {
    auto json = parse_json(text);
    return json.ok() ? *std::move(json) : Json();
}

}  // namespace

StoredResponse::StoredResponse(StoredPtr previous, std::string input, std::string response,
                               std::shared_ptr<std::atomic<int64_t>> bytes)
    : previous_(std::move(previous)),
      input_(std::move(input)),
      response_(std::move(response)),
      bytes_(std::move(bytes)) {
    *bytes_ += static_cast<int64_t>(sizeof(*this) + input_.size() + response_.size());
}

// Releases the chain iteratively: recursion as deep as a conversation is long could overflow the stack.
StoredResponse::~StoredResponse() {
    *bytes_ -= static_cast<int64_t>(sizeof(*this) + input_.size() + response_.size());
    StoredPtr next = std::move(previous_);
    while (next && next.use_count() == 1) {
        StoredPtr after = std::move(next->previous_);
        next = std::move(after);
    }
}

Json StoredResponse::input() const { return parsed(input_); }

Result<Json> StoredResponse::conversation(size_t most_bytes) const {
    std::vector<const StoredResponse*> chain;
    size_t bytes = 0;
    for (const StoredResponse* at = this; at; at = at->previous_.get()) {
        bytes += at->input_.size() + at->response_.size();
        if (bytes > most_bytes) return fail("the stored conversation has more than {} bytes", most_bytes);
        chain.push_back(at);
    }
    Json items = Json::array();
    for (size_t i = chain.size(); i-- > 0;) {
        for (Json& item : parsed(chain[i]->input_)) items.push_back(std::move(item));
        Json response = parsed(chain[i]->response_);
        for (Json& item : response["output"]) items.push_back(std::move(item));
    }
    return items;
}

// Call with the mutex locked.
void ResponseStore::erase(Place place) {
    for (const std::string& item : place->items) by_item_.erase(item);
    by_id_.erase(place->id);
    entries_.erase(place);
}

void ResponseStore::keep(StoredPtr previous, std::string input, const Json& response, int64_t most_bytes) {
    const std::string id = response["id"];
    Entry entry{
        id,
        std::make_shared<const StoredResponse>(std::move(previous), std::move(input), body_text(response), bytes_),
        {}};
    for (const Json& item : response["output"])
        if (const Json name = item.value("id", Json()); name.is_string()) entry.items.push_back(name);
    const std::lock_guard lock(mutex_);
    entries_.push_front(std::move(entry));
    by_id_[id] = entries_.begin();
    for (const std::string& item : entries_.front().items) by_item_[item] = entries_.begin();
    while (*bytes_ > most_bytes && !entries_.empty()) erase(std::prev(entries_.end()));
}

StoredPtr ResponseStore::find(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->response;
}

bool ResponseStore::forget(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return false;
    erase(found->second);
    return true;
}

std::optional<Json> ResponseStore::item(const std::string& id) {
    StoredPtr response;
    {
        const std::lock_guard lock(mutex_);
        const auto found = by_item_.find(id);
        if (found == by_item_.end()) return std::nullopt;
        response = found->second->response;
    }
    const Json whole = parsed(response->response());
    for (const Json& item : whole["output"])
        if (item.value("id", Json()) == id) return item;
    return std::nullopt;
}

}  // namespace nibble
