// POST /v1/completions.
#include "engine/answer_constraint.h"
#include "server/neutral_fields.h"
#include "server/openai_writer.h"
#include "server/routes.h"

#include <map>

namespace nibble {
namespace {

constexpr size_t most_prompts = 2048;
constexpr int32_t most_logprobs = 100;

struct CompletionWish {
    Request like;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::string> echoes;  // texts of the prompts, if echo is set
    AnswerForm form;
    int32_t logprobs = -1;
    bool echo = false, no_answer = false;  // no_answer: max_tokens is 0; only the prompt is returned
};

Result<std::vector<std::vector<int32_t>>> read_prompts(BodyFields& fields, const ServedModel& model) {
    const Json* prompt = fields.find("prompt");
    if (!prompt) return fields.bad("prompt", "is missing");
    bool special = true;
    NIBBLE_CHECK(fields.read("add_special_tokens", special));
    const bool whole = fields.has("truncate_prompt_tokens");  // keeps the end, so all is encoded
    const int64_t most = whole ? MeterLimits::unlimited : most_prompt_tokens(model);
    std::vector<std::vector<int32_t>> out;
    const auto add = [&](const Json& one) -> Status {
        std::vector<int32_t> ids;
        if (one.is_string()) {
            auto encoded = model.tokenizer.encode(one.get_ref<const std::string&>(),
                                                  {.add_special = special, .most_tokens = most});
            if (!encoded.ok()) return fields.bad("prompt", encoded.error().message());
            ids.assign(encoded->begin(), encoded->end());
        } else if (!json_value(one, ids)) {
            return fields.bad("prompt", "is neither a text nor token ids, nor a list of either");
        }
        out.push_back(std::move(ids));
        return Ok{};
    };
    const bool list = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
    if (!list) {
        NIBBLE_CHECK(add(*prompt));
    } else {
        if (prompt->size() > most_prompts)
            return fields.bad("prompt", fmt::format("has more than {} prompts", most_prompts));
        for (const Json& one : *prompt) NIBBLE_CHECK(add(one));
    }
    return out;
}

Result<CompletionWish> read_completion(BodyFields& fields, const ServedModel& model, bool ignore_unknown) {
    CompletionWish wish;
    Request& like = wish.like;
    like = model.like;
    NIBBLE_TRY(wish.prompts, read_prompts(fields, model));
    NIBBLE_CHECK(read_sampling(fields, model, like));
    GrammarTokensPtr grammar;
    NIBBLE_CHECK(read_answer_grammar(fields, model.grammars.get(), grammar));
    if (grammar) like.constraint = token_constraint(AnswerConstraint({}, grammar, model.grammars->vocabulary()));
    NIBBLE_TRY(wish.form, read_form(fields, like));
    NIBBLE_CHECK(fields.read("echo", wish.echo));
    NIBBLE_CHECK(fields.read_in("logprobs", wish.logprobs, 0, most_logprobs));
    like.max_tokens = 16;
    NIBBLE_CHECK(fields.read_in("max_tokens", like.max_tokens, int64_t{0}, int64_t{1} << 40));
    wish.no_answer = like.max_tokens == 0;
    if (wish.no_answer && !wish.echo) return fields.bad("max_tokens", "0 requires echo = true");
    like.max_tokens = std::max<int64_t>(like.max_tokens, 1);
    if (like.min_tokens > like.max_tokens) return fields.bad("min_tokens", "is greater than max_tokens");
    like.top_logprobs = wish.logprobs;
    if (wish.echo && wish.logprobs >= 0) like.prompt_logprobs = std::max(like.prompt_logprobs, wish.logprobs);
    for (auto& prompt : wish.prompts) {
        NIBBLE_CHECK(truncate_prompt(fields, model, prompt));
        NIBBLE_CHECK(check_fits(fields, "prompt", model, prompt));
        if (wish.echo)
            wish.echoes.push_back(model.tokenizer.decode(
                {reinterpret_cast<const TokenId*>(prompt.data()), prompt.size()}, like.skip_special));
    }
    if (!ignore_unknown) NIBBLE_CHECK(read_the_rest(fields));
    return wish;
}

class CompletionWriter : public OpenAiWriter {
public:
    CompletionWriter(ExchangePtr exchange, ModelPtr model, const CompletionWish& wish)
        : OpenAiWriter(std::move(exchange), std::move(model), wish.form, "cmpl-"),
          echoes_(wish.echoes),
          logprobs_(wish.logprobs),
          echo_(wish.echo),
          no_answer_(wish.no_answer),
          per_part_(wish.like.choices) {
        choices_.assign(wish.prompts.size() * size_t(per_part_), One(*model_, wish.like.skip_special));
        for (const auto& prompt : wish.prompts) prompt_tokens_ += std::ssize(prompt);
        if (form_.token_ids) prompts_ = wish.prompts;
    }

    void begin() override {
        if (form_.stream.stream) out_.begin();
    }

    void event(const HeardEvent& e) override {
        One& one = choices_[size_t(e.choice)];
        std::string text;
        if (echo_ && !std::exchange(one.echoed, true)) text = echoes_[e.part];
        // Scores of a prompt are in the first choice's first event; the other choices repeat them.
        if (!e.prompt.empty()) scores_[e.part] = e.prompt;
        if (logprobs_ >= 0 && echo_ && !one.prompt_scored) {
            const auto scores = scores_.find(e.part);
            if (scores != scores_.end()) {
                one.prompt_scored = true;
                for (size_t i = 0; i < scores->second.size(); ++i)
                    one.logprobs.add(*model_, scores->second[i], logprobs_, form_.as_ids, i == 0);
                one.logprobs.end_prompt();
            }
        }
        if (!no_answer_) {
            text += e.text;
            for (const GeneratedToken& t : e.tokens) {
                if (logprobs_ >= 0) one.logprobs.add(*model_, t, logprobs_, form_.as_ids, false);
                if (form_.token_ids) one.ids.push_back(t.id);
                ++generated_;
            }
        }
        const bool ends = e.finish != FinishReason::none;
        if (!form_.stream.stream) {
            one.text += text;
            if (ends) one.finish = e;
            return;
        }
        if (text.empty() && !ends && (logprobs_ < 0 || e.tokens.empty())) return;
        Json chunk = head(object_name);
        chunk["choices"] = Json::array({choice_json(e.choice, std::move(text), ends ? &e : nullptr)});
        send_chunk(std::move(chunk), e.total);
    }

    void finish(const RequestReport& total) override {
        RequestReport report = total;
        if (no_answer_) report.generated_tokens = 0;
        if (form_.stream.stream) return end_stream(object_name, usage_json(report));
        ObjectText json;
        json.add(head(object_name));
        std::string prompt_logprobs;  // for the prompt of the choice
        json.add_list("choices", choices_.size(), [&](size_t i) {
            One& one = choices_[i];
            ObjectText choice;
            choice.add(choice_json(static_cast<int32_t>(i), std::exchange(one.text, {}), &one.finish));
            if (form_.prompt_logprobs) {
                if (i % size_t(per_part_) == 0)
                    prompt_logprobs = prompt_logprobs_text(*model_, scores_[i / size_t(per_part_)], form_.as_ids);
                choice.add_text("prompt_logprobs", prompt_logprobs);
            }
            return choice.take();
        });
        json.add({{"usage", usage_json(report)}, {"timings", timings_json(report)}});
        exchange_->send(json_text_response(json.take()));
    }

private:
    struct One {
        One(const ServedModel& model, bool skip_special) : logprobs(model, skip_special) {}
        std::string text;
        LegacyLogprobs logprobs;
        std::vector<int32_t> ids;
        HeardEvent finish;
        bool echoed = false, prompt_scored = false;
    };

    Json choice_json(int32_t index, std::string text, const HeardEvent* end) {
        One& one = choices_[size_t(index)];
        Json json{{"index", index},
                  {"text", std::move(text)},
                  {"logprobs", logprobs_ >= 0 ? one.logprobs.take() : Json(nullptr)},
                  {"finish_reason", end ? Json(no_answer_ ? "length" : finish_reason(*end)) : Json(nullptr)},
                  {"stop_reason", nullptr}};
        if (end) json["stop_reason"] = stop_reason(*model_, *end);
        if (form_.token_ids) {
            json["token_ids"] = std::exchange(one.ids, {});
            if (end) json["prompt_token_ids"] = prompts_[size_t(index / per_part_)];
        }
        return json;
    }

    static constexpr std::string_view object_name = "text_completion";

    std::vector<std::string> echoes_;
    std::vector<std::vector<int32_t>> prompts_;
    int32_t logprobs_;
    bool echo_, no_answer_;
    int32_t per_part_;
    std::vector<One> choices_;
    std::map<size_t, std::vector<GeneratedToken>> scores_;
};

}  // namespace

void answer_completions(ExchangePtr exchange, ModelPtr model) {
    Json body = std::move(exchange->body);
    BodyFields fields(body, exchange->deadline);
    if (const Status read = unfold_nvext(fields, body); !read.ok())
        return exchange->fail(fields.client_error(read.error()));
    auto wish = read_completion(fields, *model, exchange->core.options.ignore_unknown);
    if (!wish.ok()) {
        exchange->fail(fields.client_error(wish.error()));
        return;
    }
    const AnswerForms form{.whole = !wish->form.stream.stream,
                           .echo = wish->echo,
                           .token_ids = wish->form.token_ids,
                           .prompt_logprobs = wish->form.prompt_logprobs};
    if (!count_answer(*exchange, *model, wish->like, wish->prompts, form)) return;
    auto writer = std::make_unique<CompletionWriter>(exchange, model, *wish);
    std::make_shared<LiveRequest>(exchange, model, std::move(writer))
        ->submit(std::move(wish->like), std::move(wish->prompts));
}

}  // namespace nibble
