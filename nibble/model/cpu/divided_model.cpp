#include "model/cpu/divided_model.h"

#include <algorithm>
#include <map>

namespace nibble {
namespace {

// Waits for all ranks. Error: `mine`, or that another rank failed.
Status agree(Communicator& ranks, const Status& mine, std::string_view what) {
    const std::byte own{mine.ok() ? uint8_t{1} : uint8_t{0}};
    std::vector<std::byte> all(static_cast<size_t>(ranks.size()));
    std::vector<std::span<std::byte>> parts;
    for (int r = 0; r < ranks.size(); ++r)
        parts.push_back(std::span(all).subspan(static_cast<size_t>(r), r == ranks.rank() ? 0 : 1));
    const Status met = ranks.gather_into({&own, 1}, parts);
    NIBBLE_CHECK(mine);
    NIBBLE_CHECK(met);
    for (int r = 0; r < ranks.size(); ++r)
        if (r != ranks.rank() && all[static_cast<size_t>(r)] == std::byte{0})
            return fail("rank {} of {} {}; its own message has the reason", r, ranks.size(), what);
    return Ok{};
}

}  // namespace

// Collects what the next record contains.
class DividedModel::Recorder {
public:
    std::vector<PoolWrite> writes;
    std::map<const KvPool*, int32_t> pools;
    int32_t next_pool = 0;
    bool last_failed = false;
};

// The memory of a pool of rank 0, whose writes outside steps the other ranks repeat.
class DividedModel::PoolMemory : public StateMemory {
public:
    PoolMemory(std::unique_ptr<StateMemory> memory, std::shared_ptr<Recorder> recorder, int32_t number)
        : memory_(std::move(memory)), recorder_(std::move(recorder)), number_(number) {}
    ~PoolMemory() override {
        add({PoolWrite::Kind::drop, number_});
        recorder_->pools.erase(pool);
    }
    std::byte* base() const override { return memory_->base(); }
    Status zero(std::byte* at, int64_t bytes) override {
        add({PoolWrite::Kind::zero_states, number_, pool->states_number(at)});
        return memory_->zero(at, bytes);
    }
    Status copy(std::byte* to, const std::byte* from, int64_t bytes) override {
        if (from - base() < pool->pages() * pool->page_bytes())
            add({PoolWrite::Kind::copy_page, number_, static_cast<int32_t>(pool->number(to)),
                 static_cast<int32_t>(pool->number(from))});
        else
            add({PoolWrite::Kind::copy_states, number_, pool->states_number(to), pool->states_number(from)});
        return memory_->copy(to, from, bytes);
    }
    void forget() override {
        add({PoolWrite::Kind::forget, number_});
        memory_->forget();
    }
    const KvPool* pool = nullptr;

private:
    void add(const PoolWrite& write) { recorder_->writes.push_back(write); }
    std::unique_ptr<StateMemory> memory_;
    std::shared_ptr<Recorder> recorder_;
    int32_t number_;
};

void LoadErrors::set(int rank, Error error) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(error).within(fmt::format("rank {}", rank));
}

std::optional<Error> LoadErrors::first() const {
    const std::lock_guard lock(mutex_);
    return first_;
}

RankTeam::RankTeam(std::unique_ptr<Communicator> ranks, std::vector<std::thread> followers,
                   std::shared_ptr<const LoadErrors> errors)
    : ranks_(std::move(ranks)), followers_(std::move(followers)), errors_(std::move(errors)) {}

RankTeam::~RankTeam() {
    // If it cannot be sent, the others have ended.
    (void)send({.action = StepRecord::Action::leave}).ok();
    ranks_.reset();
    for (std::thread& follower : followers_) follower.join();
}

Status RankTeam::send(StepRecord record) {
    record.number = ++number_;
    return ranks_->send_record(encode(record));
}

Result<std::unique_ptr<DividedModel>> DividedModel::load(std::shared_ptr<RankTeam> team, const std::string& text,
                                                         std::shared_ptr<const Checkpoint> checkpoint,
                                                         const ModelOptions& options, ThreadPool& pool) {
    const int32_t number = team->next_model();
    NIBBLE_CHECK(team->send({.action = StepRecord::Action::load, .model = number, .text = text}));
    ModelOptions shared = options;
    shared.ranks = &team->ranks();
    Result<Model> model = Model::load(std::move(checkpoint), shared, pool);
    const Status all =
        agree(team->ranks(), model.ok() ? Status(Ok{}) : Status(model.error()), "could not load the model");
    if (model.ok() && !all.ok())
        if (const std::optional<Error> reason = team->load_error()) return *reason;
    NIBBLE_CHECK(all);
    return std::unique_ptr<DividedModel>(new DividedModel(std::move(team), number, *std::move(model)));
}

DividedModel::DividedModel(std::shared_ptr<RankTeam> team, int32_t number, Model model)
    : team_(std::move(team)), number_(number), model_(std::move(model)), recorder_(std::make_shared<Recorder>()) {}

DividedModel::~DividedModel() {
    (void)send({.action = StepRecord::Action::drop}, Batch({}), false).ok();  // fails if the others have ended
}

Result<std::unique_ptr<KvPool>> DividedModel::make_pool(int64_t tokens, int64_t sequences) const {
    const int32_t number = recorder_->next_pool++;
    PoolMemory* recorded = nullptr;
    auto pool = KvPool::create(states(), tokens, sequences, [&](int64_t bytes) -> Result<std::unique_ptr<StateMemory>> {
        NIBBLE_TRY(auto memory, host_state_memory(bytes));
        auto mine = std::make_unique<PoolMemory>(std::move(memory), recorder_, number);
        recorded = mine.get();
        return std::unique_ptr<StateMemory>(std::move(mine));
    });
    NIBBLE_CHECK(send({.action = StepRecord::Action::pool, .pool = number, .tokens = tokens, .sequences = sequences},
                      Batch({}), false));
    NIBBLE_CHECK(
        agree(team_->ranks(), pool.ok() ? Status(Ok{}) : Status(pool.error()), "has no memory for the KV cache"));
    recorded->pool = pool->get();
    recorder_->pools[pool->get()] = number;
    return pool;
}

Result<int64_t> DividedModel::free_bytes(int64_t rows, int64_t wanted) const {
    NIBBLE_TRY(const int64_t bytes, model_.free_bytes(rows, wanted));
    return bytes / team_->ranks().size();
}

Status DividedModel::send(StepRecord record, const Batch& batch, bool reserves) const {
    for (const Segment& s : batch.segments()) {
        StepRecord::Rows rows{.places = {}, .tokens = {s.tokens.begin(), s.tokens.end()}};
        rows.logits_from = s.logits_from, rows.position = s.position;
        if (s.sequence) {
            if (reserves) NIBBLE_CHECK(s.sequence->reserve(std::ssize(s.tokens)));
            const auto pool = recorder_->pools.find(&s.sequence->pool());
            if (pool == recorder_->pools.end()) return fail("a sequence of another model's pool");
            rows.pool = pool->second;
            rows.places = s.sequence->places();
        }
        record.segments.push_back(std::move(rows));
    }
    record.model = number_;
    record.last_failed = recorder_->last_failed;
    record.writes = std::exchange(recorder_->writes, {});
    return team_->send(std::move(record));
}

Status DividedModel::finished(Status step) const {
    recorder_->last_failed = !step.ok();
    return step;
}

Status DividedModel::forward(const Batch& batch, std::span<float> logits, Observer* observer) const {
    if (observer) return fail(ErrorKind::usage, "activations cannot be observed while several ranks run a model");
    NIBBLE_CHECK(check(batch, std::ssize(logits), config().vocab));
    NIBBLE_CHECK(send({.action = StepRecord::Action::forward}, batch, true));
    return finished(model_.forward(batch, logits));
}

Status DividedModel::evaluate(const Batch& batch, std::span<float> logits) const {
    NIBBLE_CHECK(check(batch, std::ssize(logits), config().vocab));
    NIBBLE_CHECK(send({.action = StepRecord::Action::evaluate}, batch, true));
    return finished(model_.evaluate(batch, logits));
}

Status DividedModel::predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                             std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const {
    NIBBLE_CHECK(send({.action = StepRecord::Action::predict, .again = again, .rows = {rows.begin(), rows.end()}},
                      batch, false));
    return finished(model_.predict(batch, rows, again, requests, chosen));
}

namespace {

// One model of a rank that follows.
class Follower {
public:
    Follower(Model model, Communicator& ranks) : model_(std::move(model)), ranks_(ranks) {}

    Status apply(const StepRecord& record) {
        // An error that depends on the inputs alone, such as a NaN, occurs on every rank.
        if (record.last_failed != !last_.ok()) {
            NIBBLE_CHECK(last_);
            return fail("rank 0 failed in a step before record {}, this rank did not", record.number);
        }
        for (const PoolWrite& write : record.writes) NIBBLE_CHECK(apply(write));
        if (record.action == StepRecord::Action::pool) return make_pool(record);
        last_ = step(record);
        return Ok{};
    }

private:
    Status make_pool(const StepRecord& record) {
        auto pool = model_.make_pool(record.tokens, record.sequences);
        NIBBLE_CHECK(agree(ranks_, pool.ok() ? Status(Ok{}) : Status(pool.error()), "has no memory for the KV cache"));
        (*pool)->mirror();
        pools_[record.pool] = std::move(*pool);
        return Ok{};
    }
    Result<KvPool*> pool(int32_t number) {
        const auto at = pools_.find(number);
        if (at == pools_.end()) return fail("rank 0 uses pool {}, which this rank does not have", number);
        return at->second.get();
    }
    Status apply(const PoolWrite& write) {
        using Kind = PoolWrite::Kind;
        if (write.kind == Kind::drop) {
            pools_.erase(write.pool);
            return Ok{};
        }
        NIBBLE_TRY(KvPool * pool, this->pool(write.pool));
        if (write.kind == Kind::zero_states) return pool->zero_states(write.to);
        if (write.kind == Kind::copy_page) return pool->copy_page(write.to, write.from);
        if (write.kind == Kind::copy_states) return pool->copy_states(write.to, write.from);
        pool->forget();
        return Ok{};
    }
    Status step(const StepRecord& record) {
        std::vector<Sequence> sequences;
        sequences.reserve(record.segments.size());
        std::vector<Segment> segments;
        for (const StepRecord::Rows& rows : record.segments) {
            Segment segment{nullptr, rows.tokens, rows.logits_from, rows.position};
            if (rows.pool >= 0) {
                NIBBLE_TRY(KvPool * pool, this->pool(rows.pool));
                NIBBLE_TRY(Sequence sequence, pool->at(rows.places));
                sequences.push_back(std::move(sequence));
                segment.sequence = &sequences.back();
            }
            segments.push_back(segment);
        }
        const Batch batch(std::move(segments));
        if (record.action == StepRecord::Action::predict) {
            const std::vector<TokenRequest> requests(static_cast<size_t>(batch.wanted()));
            std::vector<ChosenToken> chosen(requests.size());  // rank 0 chooses
            return model_.predict(batch, record.rows, record.again, requests, chosen);
        }
        logits_.resize(static_cast<size_t>(batch.wanted() * model_.config().vocab));
        return record.action == StepRecord::Action::forward ? model_.forward(batch, logits_)
                                                            : model_.evaluate(batch, logits_);
    }

    Model model_;
    Communicator& ranks_;
    std::map<int32_t, std::unique_ptr<KvPool>> pools_;
    std::vector<float> logits_;
    Status last_ = Ok{};
};

}  // namespace

Status follow(Communicator& ranks, const ShareLoader& load) {
    std::map<int32_t, Follower> models;
    for (int64_t number = 1;; ++number) {
        NIBBLE_TRY(const RankBytes bytes, ranks.next_record());
        NIBBLE_TRY(const StepRecord record, decode_record(bytes));
        if (record.number != number) return fail("rank 0 sent record {}, this rank expects {}", record.number, number);
        if (record.action == StepRecord::Action::leave) return Ok{};
        if (record.action == StepRecord::Action::load) {
            Result<Model> model = load(record.text);
            NIBBLE_CHECK(agree(ranks, model.ok() ? Status(Ok{}) : Status(model.error()), "could not load the model"));
            models.try_emplace(record.model, *std::move(model), ranks);
            continue;
        }
        const auto model = models.find(record.model);
        if (model == models.end()) return fail("rank 0 uses model {}, which this rank does not have", record.model);
        if (record.action == StepRecord::Action::drop)
            models.erase(model);
        else
            NIBBLE_CHECK(model->second.apply(record));
    }
}

}  // namespace nibble
