#include "server/load_run.h"

#include "base/json.h"
#include "base/philox.h"
#include "http/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace nibble {
namespace {

using LoadClock = std::chrono::steady_clock;
constexpr uint64_t prompt_role = 1, arrival_role = 2;
constexpr int64_t most_clients = 4096;

double seconds_since(LoadClock::time_point start) {
    return std::chrono::duration<double>(LoadClock::now() - start).count();
}

HttpHeaders load_headers(const LoadPlan& plan) {
    HttpHeaders headers{{"Content-Type", "application/json"}};
    if (!plan.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + plan.api_key);
    return headers;
}

std::string base_path(const LoadPlan& plan) {
    return plan.url.base.ends_with("/v1") ? plan.url.base : plan.url.base + "/v1";
}

std::string request_body(const LoadPlan& plan, int64_t number) {
    Json body{{"model", plan.model}, {"max_tokens", plan.output_tokens},
              {"temperature", 0},    {"ignore_eos", true},
              {"stream", true},      {"stream_options", {{"include_usage", true}}}};
    if (!plan.texts.empty()) {
        body["prompt"] = plan.texts[static_cast<size_t>(number) % plan.texts.size()];
    } else {
        Json ids = Json::array();
        const PhiloxStream stream{plan.seed, prompt_role << 32 | static_cast<uint64_t>(number)};
        // The first ids of a vocabulary are more often control tokens.
        const int64_t low = plan.vocabulary > 2000 ? 1000 : plan.vocabulary / 4;
        for (int64_t i = 0; i < plan.input_tokens; ++i)
            ids.push_back(low + stream.block(static_cast<uint64_t>(i)).word[0] % (plan.vocabulary - low));
        body["prompt"] = std::move(ids);
    }
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Runs one request over its own connection, as most clients do.
LoadRecord run_one(const LoadPlan& plan, int64_t number) {
    LoadRecord record;
    const std::chrono::milliseconds patience(static_cast<int64_t>(plan.patience_seconds * 1000));
    const HttpRequest request{.method = "POST",
                              .path = base_path(plan) + "/completions",
                              .headers = load_headers(plan),
                              .body = request_body(plan, number)};
    const auto start = LoadClock::now();
    auto client = HttpClient::connect(plan.url.address, patience);
    if (!client.ok()) {
        record.error = client.error().message();
        return record;
    }
    SseReader reader;
    std::string other, error;  // a response body that is not a stream
    double last = 0;
    bool done = false;
    int64_t pieces = 0;
    const auto on_event = [&](const SseEvent& event) {
        if (event.data == "[DONE]") {
            done = true;
            return;
        }
        const auto json = parse_json(event.data);
        if (!json.ok() || !json->is_object()) {
            error = "an event is not a JSON object";
            return;
        }
        if (json->contains("error")) error = (*json)["error"].dump();
        if (const auto usage = json->find("usage"); usage != json->end() && usage->is_object()) {
            record.input_tokens = usage->value("prompt_tokens", int64_t{0});
            record.output_tokens = usage->value("completion_tokens", int64_t{0});
        }
        const auto choices = json->find("choices");
        if (choices == json->end() || !choices->is_array() || choices->empty()) return;
        const auto text = (*choices)[0].find("text");
        if (text == (*choices)[0].end() || !text->is_string() || text->get_ref<const std::string&>().empty()) return;
        const double now = seconds_since(start);
        if (++pieces == 1)
            record.ttft = now;
        else
            record.gaps.push_back(now - last);
        last = now;
    };
    const auto answer = client->send(request, [&](const HttpResponse& head, std::string_view piece) {
        if (head.status == 200)
            reader.push(piece, on_event);
        else
            other += piece;
        return true;
    });
    record.latency = seconds_since(start);
    if (!answer.ok())
        record.error = answer.error().message();
    else if (answer->status != 200)
        record.error = fmt::format("status {}: {}", answer->status, other.substr(0, 300));
    else if (!error.empty())
        record.error = error;
    else if (!done)
        record.error = "the stream ended without [DONE]";
    else if (record.output_tokens == 0)
        record.error = "the stream has no usage";
    record.ok = record.error.empty();
    // Tokens without text produced no piece, so the end of the stream counts.
    if (record.ok && pieces == 0) record.ttft = record.latency;
    return record;
}

Result<std::string> first_model(const LoadPlan& plan) {
    NIBBLE_TRY(HttpClient client, HttpClient::connect(plan.url.address, std::chrono::seconds(30)));
    NIBBLE_TRY(const HttpResponse answer,
               client.send({.path = base_path(plan) + "/models", .headers = load_headers(plan)}));
    const auto json = parse_json(answer.body);
    if (answer.status != 200 || !json.ok() || !json->is_object() || !json->contains("data") ||
        !(*json)["data"].is_array() || (*json)["data"].empty() || !(*json)["data"][0].is_object() ||
        !(*json)["data"][0].contains("id") || !(*json)["data"][0]["id"].is_string())
        return fail("{}/models: no list of models (status {})", base_path(plan), answer.status);
    return (*json)["data"][0]["id"].get<std::string>();
}

}  // namespace

LoadQuantiles quantiles(std::vector<double> values) {
    if (values.empty()) return {};
    std::ranges::sort(values);
    double sum = 0;
    for (const double v : values) sum += v;
    const auto at = [&](double share) {
        const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
        return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
    };
    return {sum / static_cast<double>(values.size()), at(0.5), at(0.9), at(0.99)};
}

LoadResult summarize(const LoadPlan& plan, const std::vector<LoadRecord>& records, double seconds) {
    LoadResult result{.plan = plan, .seconds = seconds};
    std::vector<double> ttft, tpot, itl, latency;
    for (const LoadRecord& r : records) {
        if (!r.ok) {
            ++result.failed;
            if (result.first_error.empty()) result.first_error = r.error;
            continue;
        }
        ++result.done;
        result.input_tokens += r.input_tokens;
        result.output_tokens += r.output_tokens;
        ttft.push_back(r.ttft);
        latency.push_back(r.latency);
        itl.insert(itl.end(), r.gaps.begin(), r.gaps.end());
        double each = 0;
        if (r.output_tokens > 1) {
            each = (r.latency - r.ttft) / static_cast<double>(r.output_tokens - 1);
            tpot.push_back(each);
        }
        const bool good = r.ttft <= plan.ttft_goal.value_or(HUGE_VAL) && each <= plan.tpot_goal.value_or(HUGE_VAL);
        result.good += good ? 1 : 0;
    }
    result.ttft = quantiles(std::move(ttft));
    result.tpot = quantiles(std::move(tpot));
    result.itl = quantiles(std::move(itl));
    result.latency = quantiles(std::move(latency));
    return result;
}

Result<LoadResult> run_load(const LoadPlan& given) {
    LoadPlan plan = given;
    if (plan.model.empty()) {
        NIBBLE_TRY(plan.model, first_model(plan));
    }
    std::vector<LoadRecord> records(static_cast<size_t>(plan.requests));
    std::atomic<int64_t> next{0};
    const auto start = LoadClock::now();
    // The start time of request i; in a closed loop 0.
    std::vector<double> leaves(records.size(), 0);
    if (plan.rate > 0)
        for (size_t i = 1; i < leaves.size(); ++i) {
            const double draw = (PhiloxStream{plan.seed, arrival_role}.block(i).word[0] + 0.5) * 0x1p-32;
            leaves[i] = leaves[i - 1] - std::log(draw) / plan.rate;
        }
    const int64_t clients = std::min({plan.rate > 0 ? plan.requests : plan.concurrency, plan.requests, most_clients});
    std::vector<std::jthread> threads;
    const auto client = [&] {
        for (int64_t i = next++; i < plan.requests; i = next++) {
            const double leave = leaves[static_cast<size_t>(i)];
            if (leave > 0)
                std::this_thread::sleep_until(
                    start + std::chrono::duration_cast<LoadClock::duration>(std::chrono::duration<double>(leave)));
            records[static_cast<size_t>(i)] = run_one(plan, i);
        }
    };
    try {
        for (int64_t c = 0; c < clients; ++c) threads.emplace_back(client);
    } catch (...) {  // no memory or no further thread: the others end after their request
        next = plan.requests;
        throw;
    }
    threads.clear();
    return summarize(plan, records, seconds_since(start));
}

}  // namespace nibble
