#include "serve/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace nibble {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One answer on its way through the model.
struct Running {
    size_t index = 0;
    Generation* generation = nullptr;
    Sequence* sequence = nullptr;
    size_t fed = 0;  // tokens of the prompt that went through
    int32_t last = 0;

    bool in_prompt() const { return fed < generation->prompt().size(); }
};

// The rows of one step: a token of every answer, then pieces of prompts while there is room.
struct Step {
    std::vector<Segment> segments;
    std::vector<Running*> owners;   // of the segments
    std::vector<Running*> wanting;  // of the rows of logits
    bool prompt = false;
};

Step plan_step(std::span<Running> running, int64_t rows) {
    Step step;
    for (Running& r : running) {
        if (r.in_prompt()) continue;
        step.segments.push_back({r.sequence, {&r.last, 1}, 0});
        step.owners.push_back(&r);
        step.wanting.push_back(&r);
        --rows;
    }
    for (Running& r : running) {
        if (!r.in_prompt() || rows <= 0) continue;
        const std::span<const int32_t> left = std::span(r.generation->prompt()).subspan(r.fed);
        const auto tokens = left.first(std::min(left.size(), static_cast<size_t>(rows)));
        const bool last = tokens.size() == left.size();
        const auto count = static_cast<int64_t>(tokens.size());
        step.segments.push_back({r.sequence, tokens, last ? count - 1 : count});
        step.owners.push_back(&r);
        if (last) step.wanting.push_back(&r);
        step.prompt = true;
        rows -= count;
    }
    return step;
}

// Buffers of the loop.
struct Loop {
    const LanguageModel& model;
    const GenerateOptions& options;
    GenerateStats stats;
    std::vector<float> logits, log_probs;

    Status step(std::span<Running> running) {
        const double start = now();
        const Step step = plan_step(running, std::max<int64_t>(options.step_rows, int64_t(running.size()) + 1));
        std::vector<std::string> texts(step.wanting.size());
        NIBBLE_CHECK(model.chooses() ? choose(step, texts) : sample(step, texts));
        for (size_t i = 0; i < step.owners.size(); ++i)
            if (step.owners[i]->in_prompt()) {
                step.owners[i]->fed += step.segments[i].tokens.size();
                stats.prompt_tokens += static_cast<int64_t>(step.segments[i].tokens.size());
            }
        stats.generated_tokens += static_cast<int64_t>(step.wanting.size());
        (step.prompt ? stats.prompt_seconds : stats.generate_seconds) += now() - start;
        for (size_t i = 0; i < step.wanting.size(); ++i) {
            Running& r = *step.wanting[i];
            const GeneratedToken& token = r.generation->tokens().back();
            if (!std::isfinite(token.logprob))
                return fail("answer {}, token {}: its log-probability is not finite", r.index,
                            r.generation->tokens().size() - 1);
            r.last = token.id;
            tell(r, texts[i]);
        }
        return Ok{};
    }

    Status sample(const Step& step, std::vector<std::string>& texts) {
        const auto vocab = static_cast<size_t>(model.config().vocab);
        logits.resize(step.wanting.size() * vocab);
        log_probs.resize(logits.size());
        NIBBLE_CHECK(model.forward(Batch(step.segments), logits));
        const Workspace& work = model.workspace();
        work.pool->parallel_for(static_cast<int64_t>(step.wanting.size()), [&](int64_t i) {
            const auto at = static_cast<size_t>(i) * vocab;
            work.elementwise->log_softmax(&logits[at], int64_t(vocab), &log_probs[at]);
            texts[size_t(i)] =
                step.wanting[size_t(i)]->generation->accept({&logits[at], vocab}, {&log_probs[at], vocab});
        });
        return Ok{};
    }
    // Where the model chooses. What it leaves open is sampled here.
    Status choose(const Step& step, std::vector<std::string>& texts) {
        std::vector<TokenRequest> requests;
        for (const Running* r : step.wanting) requests.push_back(r->generation->request());
        std::vector<ChosenToken> chosen(requests.size());
        NIBBLE_CHECK(model.choose(Batch(step.segments), requests, chosen));
        for (size_t i = 0; i < chosen.size(); ++i) {
            Generation& generation = *step.wanting[i]->generation;
            if (chosen[i].id >= 0) {
                texts[i] = generation.accept(chosen[i].id, chosen[i].logprob);
                continue;
            }
            logits.resize(static_cast<size_t>(model.config().vocab));
            log_probs.resize(logits.size());
            NIBBLE_CHECK(model.logits_of(static_cast<int64_t>(i), logits));
            model.workspace().elementwise->log_softmax(logits.data(), std::ssize(logits), log_probs.data());
            texts[i] = generation.accept(logits, log_probs);
        }
        return Ok{};
    }

    void tell(const Running& r, const std::string& text) const {
        if (options.on_text && !text.empty()) options.on_text(r.index, text);
        if (options.on_finish && r.generation->finished()) options.on_finish(r.index);
    }

    bool stopped() const { return options.stop && options.stop->load(std::memory_order_relaxed); }
};

int64_t tokens_at_most(const Generation& g) { return static_cast<int64_t>(g.prompt().size()) + g.max_tokens(); }

}  // namespace

std::string_view finish_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::none:
            return "none";
        case FinishReason::stop:
            return "stop";
        case FinishReason::length:
            return "length";
        case FinishReason::cancelled:
            return "cancelled";
    }
    __builtin_unreachable();
}

Status check_prompt(std::span<const int32_t> prompt, int64_t vocab, int64_t context) {
    if (prompt.empty()) return fail("the prompt has no tokens");
    for (size_t i = 0; i < prompt.size(); ++i)
        if (prompt[i] < 0 || prompt[i] >= vocab)
            return fail("the prompt's token {} is {}; the model's vocabulary has {}", i, prompt[i], vocab);
    if (static_cast<int64_t>(prompt.size()) >= context)
        return fail("the prompt has {} tokens; the model's context of {} leaves no room for an answer", prompt.size(),
                    context);
    return Ok{};
}

Generation::Generation(const Tokenizer& tokenizer, std::vector<int32_t> prompt, GenerationParams params,
                       uint64_t sequence, int64_t context)
    : prompt_(std::move(prompt)),
      params_(std::move(params)),
      sampler_(params_.sampling, sequence, prompt_),
      decoder_(tokenizer, true),
      stop_(params_.stop) {
    params_.max_tokens = std::min(params_.max_tokens, context - static_cast<int64_t>(prompt_.size()));
}

std::string Generation::accept(std::span<float> logits, std::span<const float> log_probs) {
    const int32_t id = sampler_.sample(logits, position());
    return accept(id, log_probs[static_cast<size_t>(id)]);
}

std::string Generation::accept(int32_t id, float logprob) {
    sampler_.accept(id);
    tokens_.push_back({id, logprob});
    if (std::ranges::find(params_.eos, id) != params_.eos.end()) return end(FinishReason::stop);
    std::string text = add(stop_.push(decoder_.push(static_cast<TokenId>(id))));
    if (stop_.found())
        finish_ = FinishReason::stop;
    else if (static_cast<int64_t>(tokens_.size()) >= params_.max_tokens)
        text += end(FinishReason::length);
    return text;
}

std::string Generation::cancel() { return finished() ? std::string() : end(FinishReason::cancelled); }

std::string Generation::end(FinishReason reason) {
    finish_ = reason;
    std::string rest = stop_.push(decoder_.finish());
    if (!stop_.found()) rest += stop_.finish();
    return add(std::move(rest));
}

std::string Generation::add(std::string text) {
    text_ += text;
    return text;
}

Result<GenerateStats> generate(const LanguageModel& model, std::span<Generation> generations,
                               const GenerateOptions& options) {
    Loop loop{model, options};
    const auto slots = static_cast<size_t>(std::clamp<int64_t>(options.batch, 1, std::ssize(generations)));
    std::vector<int64_t> lengths;  // the longest of every set of answers that may run together fit
    for (const Generation& g : generations) lengths.push_back((tokens_at_most(g) + 63) / 64 * 64);
    std::ranges::sort(lengths, std::greater{});
    int64_t tokens = 0;
    for (size_t i = 0; i < slots; ++i) tokens += lengths[i];
    NIBBLE_TRY(const std::unique_ptr<KvPool> pool, model.make_pool(tokens, static_cast<int64_t>(slots)));

    std::vector<std::unique_ptr<Sequence>> sequences;  // of `running`, one each
    std::vector<Running> running;
    size_t next = 0;
    while (next < generations.size() || !running.empty()) {
        while (running.size() < slots && next < generations.size() && !loop.stopped()) {
            sequences.push_back(std::make_unique<Sequence>(pool->sequence()));
            running.push_back({next, &generations[next], sequences.back().get()});
            ++next;
        }
        if (loop.stopped()) {
            for (const Running& r : running) loop.tell(r, r.generation->cancel());
            for (; next < generations.size(); ++next) generations[next].cancel();
            break;
        }
        NIBBLE_CHECK(loop.step(running));
        for (size_t i = running.size(); i-- > 0;)
            if (running[i].generation->finished()) {
                running.erase(running.begin() + ptrdiff_t(i));
                sequences.erase(sequences.begin() + ptrdiff_t(i));
            }
    }
    return loop.stats;
}

Result<GenerateStats> generate(const LanguageModel& model, KvPool& pool, Past& past, Generation& generation,
                               const GenerateOptions& options) {
    Loop loop{model, options};
    const std::vector<int32_t>& prompt = generation.prompt();
    const bool continues =
        past.tokens.size() < prompt.size() && std::equal(past.tokens.begin(), past.tokens.end(), prompt.begin());
    if (!continues) past = {pool.sequence(), {}};
    std::vector<Running> running{{0, &generation, &past.sequence, past.tokens.size()}};
    loop.stats.prompt_tokens_reused = static_cast<int64_t>(past.tokens.size());
    while (!generation.finished()) {
        if (loop.stopped()) {
            loop.tell(running[0], generation.cancel());
            break;
        }
        NIBBLE_CHECK(loop.step(running));
    }
    past.tokens.assign(prompt.begin(), prompt.begin() + ptrdiff_t(running[0].fed));
    for (const GeneratedToken& t : generation.tokens())
        if (static_cast<int64_t>(past.tokens.size()) < past.sequence.position()) past.tokens.push_back(t.id);
    return loop.stats;
}

}  // namespace nibble
