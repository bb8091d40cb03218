#include "jobs/join_ranks.h"

#include "base/fields.h"
#include "jobs/inspect_shards.h"
#include "jobs/loaded_model.h"
#include "jobs/open_checkpoint.h"
#include "model/state_plan.h"
#include "page/numbers.h"
#include "parallel/rank_group.h"
#include "tensor/device.h"

#include <algorithm>
#include <thread>

namespace nibble {
namespace {

// Returns JSON of the model and settings that the other ranks load.
std::string text_of(const Checkpoint& checkpoint, const ModelSettings& settings, const ModelOptions& options) {
    const Json json{{"path", std::filesystem::absolute(checkpoint.path()).string()},
                    {"compute", settings.compute},
                    {"kv", settings.kv},
                    {"ssm_state", settings.ssm_state},
                    {"kernels", settings.kernels},
                    {"sums", settings.sums},
                    {"weights_only", settings.weights_only},
                    {"prediction", options.prediction},
                    {"ssm_seed", options.ssm_seed},
                    {"most_tokens", options.most_tokens}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Model> load_share(const std::string& text, Communicator& ranks, ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_TRY(const Json json, parse_json(text));
    Fields fields(json);
    ModelSettings settings;
    std::string path;
    bool prediction = false;
    uint64_t ssm_seed = 0;
    int64_t most_tokens = 0;
    NIBBLE_CHECK(fields.read("path", path));
    NIBBLE_CHECK(fields.read("compute", settings.compute));
    NIBBLE_CHECK(fields.read("kv", settings.kv));
    NIBBLE_CHECK(fields.read("ssm_state", settings.ssm_state));
    NIBBLE_CHECK(fields.read("kernels", settings.kernels));
    NIBBLE_CHECK(fields.read("sums", settings.sums));
    NIBBLE_CHECK(fields.read("weights_only", settings.weights_only));
    NIBBLE_CHECK(fields.read("prediction", prediction));
    NIBBLE_CHECK(fields.read("ssm_seed", ssm_seed));
    NIBBLE_CHECK(fields.read("most_tokens", most_tokens));
    NIBBLE_CHECK(fields.all_read().within("what rank 0 loads"));
    NIBBLE_TRY(ModelOptions options, model_options(settings));
    options.prediction = prediction, options.ssm_seed = ssm_seed, options.most_tokens = most_tokens;
    options.ranks = &ranks;
    NIBBLE_TRY(std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(path, hooks));
    return Model::load(std::move(checkpoint), options, pool).within(path);
}

// `errors`: receives why this rank cannot load a model; may be null.
Status follow_rank(Communicator& ranks, int threads, const JobHooks& hooks, LoadErrors* errors = nullptr) {
    ThreadPool pool(threads);
    return follow(ranks, [&](const std::string& text) {
        Result<Model> model = load_share(text, ranks, pool, hooks);
        if (errors && !model.ok()) errors->set(ranks.rank(), model.error());
        return model;
    });
}

// Limit for a rank that stands still. A process that is not stopped sends a byte every second.
constexpr std::chrono::seconds most_silence{10};

int threads_of_rank(int ranks) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(ranks, 1));
}

std::shared_ptr<RankTeam> team_of_threads(int ranks) {
    std::vector<std::unique_ptr<Communicator>> all = thread_ranks(ranks);
    std::vector<std::thread> followers;
    const auto errors = std::make_shared<LoadErrors>();
    for (size_t r = 1; r < all.size(); ++r)
        followers.emplace_back([own = std::move(all[r]), threads = threads_of_rank(ranks), errors]() mutable {
            // Rank 0 learns that this rank has ended, and reports why it could not load a model.
            (void)follow_rank(*own, threads, {}, errors.get()).ok();
            own.reset();
        });
    return std::make_shared<RankTeam>(std::move(all[0]), std::move(followers), errors);
}

Status check_settings(const ModelSettings& settings) {
    if (settings.tensor_parallel_size < 1 || settings.tensor_parallel_size > most_ranks)
        return fail(ErrorKind::usage, "--tensor-parallel-size {}: choose 1 to {}", settings.tensor_parallel_size,
                    most_ranks);
    NIBBLE_TRY(const DeviceChoice device, parse_device(settings.device).within("--device"));
    if (device.cuda)
        return fail(ErrorKind::usage, "--tensor-parallel-size {}: several ranks run a model with --device cpu only",
                    settings.tensor_parallel_size);
    return Ok{};
}

}  // namespace

Result<bool> join_ranks(ModelSettings& settings, const std::string& identity, const JobHooks& hooks) {
    if (settings.tensor_parallel_size == 1) return false;
    NIBBLE_CHECK(check_settings(settings));
    NIBBLE_TRY(const RankPlace place, rank_place());
    const int size = settings.tensor_parallel_size;
    if (place.alone()) {
        if (settings.threads == 0) settings.threads = threads_of_rank(size);
        return false;
    }
    if (place.size != size)
        return fail(ErrorKind::usage, "--tensor-parallel-size {}, but the launcher started {} processes", size,
                    place.size);
    NIBBLE_CHECK(need_address(place).as(ErrorKind::usage));
    const bool unix_socket = place.address.starts_with("unix:");
    if (settings.threads == 0 && (unix_socket || place.local_size))
        settings.threads = threads_of_rank(unix_socket ? size : *place.local_size);
    NIBBLE_TRY(std::unique_ptr<RankGroup> group,
               RankGroup::meet(place, {.identity = identity, .silence = most_silence}));
    if (place.rank == 0) {
        settings.team = std::make_shared<RankTeam>(std::move(group));
        return false;
    }
    JobHooks quiet;  // rank 0 prints what there is to say
    quiet.stop_requested = hooks.stop_requested;
    NIBBLE_CHECK(follow_rank(*group, settings.threads, quiet));
    return true;
}

Result<std::unique_ptr<LanguageModel>> load_divided(std::shared_ptr<const Checkpoint> checkpoint,
                                                    const ModelSettings& settings, const ModelOptions& options,
                                                    ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_CHECK(check_settings(settings));
    const int size = settings.tensor_parallel_size;
    NIBBLE_TRY(const ShardText shards, inspect_shards(*checkpoint, size));
    const auto bytes = shards.json.at("bytes").get<std::vector<int64_t>>();
    NIBBLE_TRY(const ModelConfig model, model_config(*checkpoint));
    const std::vector<StateLayout> states = planned_states(model, size);
    for (size_t rank = 0; rank < bytes.size(); ++rank)
        hooks.emit_note(
            fmt::format("rank {} of {}: {} of weights, {} of cache for a token (BF16), {} of states for a "
                        "sequence",
                        rank, size, human_bytes(bytes[rank]), human_bytes(token_bytes(states)),
                        human_bytes(sequence_bytes(states))));
    std::shared_ptr<RankTeam> team = settings.team ? settings.team : team_of_threads(size);
    const std::string text = text_of(*checkpoint, settings, options);
    NIBBLE_TRY(auto loaded, DividedModel::load(std::move(team), text, std::move(checkpoint), options, pool));
    return std::unique_ptr<LanguageModel>(std::move(loaded));
}

}  // namespace nibble
