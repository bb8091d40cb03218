#include "eval/generation_tasks.h"
#include "eval/likelihood_tasks.h"
#include "eval/run.h"
#include "eval/text_task.h"

#include "support/chat_model.h"
#include "support/gzip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

namespace nibble {
namespace {

constexpr size_t vocab = 272;

std::string long_text() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("Line {} of a text that says hello to the world. ", i * i);
    return text;
}

class Tasks : public testing::Test {
protected:
    test::ChatModel m;
    Subject subject{"chat", &*m.model, &*m.tokenizer, {}};
    test::TempDir dir;

    std::vector<Json> run_all(Task& task, const Subject& who) {
        const Status ready = task.prepare(who);
        EXPECT_TRUE(ready.ok()) << ready.error().message();
        auto results = task.run(who, 0, task.items());
        EXPECT_TRUE(results.ok()) << results.error().message();
        return *results;
    }
    std::filesystem::path file(std::string_view name, std::string_view text) {
        test::write_file(dir / name, text);
        return dir / name;
    }
    LinesFile lines(std::string_view text) {
        auto read = read_lines_file(file("lines.jsonl", text), 0);
        EXPECT_TRUE(read.ok()) << read.error().message();
        return *read;
    }
};

// llama-perplexity's definition, written out.
TEST_F(Tasks, PerplexityIsTheDefinition) {
    const std::string text = long_text();
    std::vector<int32_t> tokens = m.encode(text);
    ASSERT_EQ(tokens[0], 269);
    double nll = 0;
    int64_t count = 0;
    for (size_t begin = 0; begin + 64 <= tokens.size(); begin += 64) {
        std::vector<int32_t> piece(tokens.begin() + ptrdiff_t(begin), tokens.begin() + ptrdiff_t(begin) + 64);
        piece[0] = 269;
        const auto log_probs = m.log_probs(piece);
        for (size_t i = 33; i < 64; ++i, ++count) nll -= log_probs[(i - 1) * vocab + size_t(piece[i])];
    }
    TextTask task({"t", text, "h"}, {.context = 64}, nullptr);
    const auto results = run_all(task, subject);
    const auto summary = task.summarize(results);
    ASSERT_TRUE(summary.ok());
    EXPECT_EQ(summary->details["tokens"], count);
    EXPECT_NEAR(summary->metrics[0].estimate.value, std::exp(nll / double(count)),
                1e-4 * std::exp(nll / double(count)));
    EXPECT_GT(summary->metrics[0].estimate.error, 0);
}

TEST_F(Tasks, SlidingWindowPerplexityIsTheDefinition) {
    const std::string text = long_text().substr(0, 400);
    const std::vector<int32_t> tokens = m.encode(text);
    double nll = 0;
    for (size_t begin = 0, counted = 1; counted < tokens.size(); begin += 16) {
        const size_t end = std::min(begin + 40, tokens.size());
        const auto log_probs = m.log_probs(std::span(tokens).subspan(begin, end - begin));
        for (; counted < end; ++counted) nll -= log_probs[(counted - begin - 1) * vocab + size_t(tokens[counted])];
    }
    TextTask task({"t", text, "h"}, {.context = 40, .stride = 16}, nullptr);
    const auto summary = task.summarize(run_all(task, subject));
    ASSERT_TRUE(summary.ok());
    EXPECT_EQ(summary->details["tokens"], tokens.size() - 1);
    EXPECT_NEAR(std::log(summary->metrics[0].estimate.value), nll / double(tokens.size() - 1), 1e-5);
}

TEST_F(Tasks, AModelComparedWithItselfHasNoDivergenceAndTheCacheAgrees) {
    const Reference plain{"chat", "f", {}, [&]() -> Result<const Subject*> { return &subject; }};
    TextTask itself({"t", long_text(), "h"}, {.context = 64, .chunks = 4}, &plain);
    auto summary = itself.summarize(run_all(itself, subject));
    ASSERT_TRUE(summary.ok());
    EXPECT_EQ(summary->metrics[1].name, "KL mean");
    EXPECT_EQ(summary->metrics[1].estimate.value, 0);
    EXPECT_EQ(summary->metrics[6].estimate.value, 1);  // same likeliest token
    EXPECT_EQ(reference_perplexity(*summary).metrics[0].estimate.value, summary->metrics[0].estimate.value);

    int loads = 0;
    const Reference cached{"chat", "f", dir / "cache", [&]() -> Result<const Subject*> {
                               ++loads;
                               return &subject;
                           }};
    TextTask first({"t", long_text(), "h"}, {.context = 64, .chunks = 4}, &cached);
    const auto filled = run_all(first, subject);
    EXPECT_EQ(loads, 1);
    TextTask second({"t", long_text(), "h"}, {.context = 64, .chunks = 4}, &cached);
    EXPECT_EQ(run_all(second, subject), filled);
    EXPECT_EQ(loads, 1);
    summary = second.summarize(filled);
    ASSERT_TRUE(summary.ok());
    EXPECT_NEAR(summary->metrics[1].estimate.value, 0, 5e-6);

    const Reference other{"other", "g", dir / "cache", plain.load};
    TextTask refused({"t", long_text(), "h"}, {.context = 64, .chunks = 4}, &other);
    EXPECT_FALSE(refused.prepare(subject).ok());
}

// Choices of one question share the computation of their context; each number is bit-equal to that of the choice alone.
TEST_F(Tasks, SharedContextsDoNotShow) {
    std::vector<Continuation> items;
    const std::vector<int32_t> question = m.encode(long_text().substr(0, 300)), other = m.encode("hello to the world");
    const auto add = [&](std::vector<int32_t> tokens, int64_t from) { items.push_back({std::move(tokens), from}); };
    for (const int32_t last : {65, 66, 67}) {
        std::vector<int32_t> tokens = question;
        tokens.insert(tokens.end(), static_cast<size_t>(last - 64), last);
        add(tokens, std::ssize(question));
    }
    add(other, std::ssize(other) - 1);
    add(question, 20);  // the whole text is counted, only 19 tokens can be shared
    for (const int32_t last : {70, 70}) {
        std::vector<int32_t> tokens = question;
        tokens.push_back(last);
        add(tokens, std::ssize(question));
    }
    std::vector<double> alone;
    for (const Continuation& c : items) alone.push_back((*score(*m.model, {&c, 1}))[0].log_prob);
    for (const int64_t rows : {1, 200, 1024}) {
        const auto together = score(*m.model, items, rows, rows == 200 ? 3 : 256);
        ASSERT_TRUE(together.ok()) << together.error().message();
        for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ((*together)[i].log_prob, alone[i]) << i << ", " << rows;
    }
}

TEST_F(Tasks, LambadaAndChoicesAreLogLikelihoods) {
    LambadaTask lambada(lines("{\"text\": \"hello the hello world\"}\n{\"text\": \"say it again\"}\n"));
    const auto results = run_all(lambada, subject);
    for (size_t i = 0; i < 2; ++i) {
        const std::string text = i == 0 ? "hello the hello world" : "say it again";
        const auto tokens = m.encode(text);
        const size_t from = m.encode(text.substr(0, text.rfind(' '))).size();
        const auto log_probs = m.log_probs(tokens);
        double sum = 0;
        for (size_t t = from; t < tokens.size(); ++t) sum += log_probs[(t - 1) * vocab + size_t(tokens[t])];
        EXPECT_NEAR(results[i]["log_prob"].get<double>(), sum, 1e-4);
    }
    ASSERT_TRUE(lambada.summarize(results).ok());

    ChoiceTask choices(
        lines("{\"context\": \"the\", \"choices\": [\"world\", \"hello world again\", \"x\"], \"answer\": 0}\n"));
    const auto chosen = run_all(choices, subject);
    std::vector<double> sums, per_character;
    for (const std::string choice : {"world", "hello world again", "x"}) {
        const auto tokens = m.encode("the " + choice);
        const auto log_probs = m.log_probs(tokens);
        double sum = 0;
        for (size_t t = m.encode("the").size(); t < tokens.size(); ++t)
            sum += log_probs[(t - 1) * vocab + size_t(tokens[t])];
        sums.push_back(sum);
        per_character.push_back(sum / double(choice.size()));
    }
    EXPECT_EQ(chosen[0]["acc"], std::ranges::max_element(sums) == sums.begin());
    EXPECT_EQ(chosen[0]["acc_norm"], std::ranges::max_element(per_character) == per_character.begin());
}

TEST_F(Tasks, Gsm8kAsksAfterItsExamplesAndMatchesAnswers) {
    std::vector<std::string> asked;
    std::vector<std::string> replies{" 1+1\n#### 2", " it is 3 or 5", "7"};
    subject.generate = [&](const TextRequest& request) -> Result<std::vector<TextAnswer>> {
        std::vector<TextAnswer> answers;
        for (const auto& prompt : request.prompts) {
            asked.push_back(m.tokenizer->decode(std::vector<TokenId>(prompt.begin(), prompt.end()), true));
            answers.push_back({replies[asked.size() - 1], true});
        }
        return answers;
    };
    Gsm8kTask task(lines("{\"question\": \"1?\", \"answer\": \"one\\n#### 1\"}\n"
                         "{\"question\": \"2?\", \"answer\": \"two\\n#### 2\"}\n"
                         "{\"question\": \"5?\", \"answer\": \"#### 5\"}\n"
                         "{\"question\": \"8?\", \"answer\": \"#### 8\"}\n"),
                   1);
    const auto results = run_all(task, subject);
    ASSERT_EQ(results.size(), 3u);
    const std::string example = "Question: 1?\nAnswer: one\n#### 1\n\n";
    EXPECT_EQ(asked[0], example + "Question: 2?\nAnswer:");
    EXPECT_EQ(asked[2], example + "Question: 8?\nAnswer:");
    EXPECT_EQ(results[0]["strict"], true);
    EXPECT_EQ(results[0]["flexible"], true);
    EXPECT_EQ(results[1]["strict"], false);
    EXPECT_EQ(results[1]["flexible"], true);
    EXPECT_EQ(results[2]["flexible"], false);
    const auto summary = task.summarize(results);
    ASSERT_TRUE(summary.ok());
    EXPECT_NEAR(summary->metrics[0].estimate.value, 1.0 / 3, 1e-15);
    EXPECT_NEAR(summary->metrics[1].estimate.value, 2.0 / 3, 1e-15);

    Gsm8kTask none(lines("{\"question\": \"1?\", \"answer\": \"1\"}\n"), 1);
    EXPECT_FALSE(none.prepare(subject).ok());
    Gsm8kTask too_long(lines(fmt::format("{{\"question\": \"{}\", \"answer\": \"1\"}}\n", std::string(900, 'x'))), 0);
    EXPECT_NE(too_long.prepare(subject).error().message().find("do not fit the model's context of 1024"),
              std::string::npos);
}

TEST_F(Tasks, HumanEvalKeepsTheBodyOfTheFunction) {
    subject.generate = [&](const TextRequest& request) -> Result<std::vector<TextAnswer>> {
        EXPECT_EQ(request.stop.size(), 5u);
        return std::vector<TextAnswer>{{"    return 1\n", true}, {"    x = 1\nprint(x)", false}};
    };
    HumanEvalTask task(
        lines("{\"task_id\": \"A/0\", \"prompt\": \"def f():\"}\n"
              "{\"task_id\": \"A/1\", \"prompt\": \"def g():\"}\n"));
    const auto summary = task.summarize(run_all(task, subject));
    ASSERT_TRUE(summary.ok());
    EXPECT_EQ(summary->details["samples"].dump(),
              "[{\"task_id\":\"A/0\",\"completion\":\"    return 1\\n\"},"
              "{\"task_id\":\"A/1\",\"completion\":\"    x = 1\"}]");
    EXPECT_EQ(summary->metrics[0].estimate.value, 0.5);
}

TEST_F(Tasks, LinesThatAreNotItemsAreNamed) {
    const auto lambada = [&](std::string_view text) {
        LambadaTask task(lines(text));
        const Status s = task.prepare(subject);
        return s.ok() ? std::string() : s.error().message();
    };
    EXPECT_EQ(lambada("{\"text\": \"word\"}\n"), "lines.jsonl: item 0: has no last word");
    EXPECT_EQ(lambada("{\"text\": \"a b\"}\n{\"txt\": 1}\n"), "lines.jsonl: item 1: 'text' is missing");
    const auto choice = [&](std::string_view text) {
        ChoiceTask task(lines(text));
        const Status s = task.prepare(subject);
        return s.ok() ? std::string() : s.error().message();
    };
    EXPECT_EQ(choice("{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 1}\n"),
              "lines.jsonl: item 0: 'answer' is not the index of one of 1 choices");
    EXPECT_EQ(choice("{\"context\": \"a\", \"choices\": \"b\", \"answer\": 1}\n"),
              "lines.jsonl: item 0: 'choices' is not a list of strings");
    const auto message = [](const auto& result) { return result.ok() ? std::string() : result.error().message(); };
    EXPECT_NE(message(read_lines_file(file("e", ""), 0)).find("is empty"), std::string::npos);
    EXPECT_NE(message(read_evaluation_text(file("e", "\xEF\xBB\xBF"))).find("is empty"), std::string::npos);
    EXPECT_NE(message(read_lines_file(file("e", "\n \n"), 0)).find("has no items"), std::string::npos);
    EXPECT_NE(message(read_lines_file(file("e", "[1]\n"), 0)).find("line 1: is not an object"), std::string::npos);
    EXPECT_NE(message(read_lines_file(file("e", "\x1f\x8b\x08"), 0)).find("gzip"), std::string::npos);
    const std::string lines = "{\"task_id\": 1}\n{\"task_id\": 2}\n";
    for (const char* name : {"HumanEval.jsonl.gz", "e"}) {
        const auto packed = read_lines_file(file(name, test::gzipped(lines)), 0);
        ASSERT_TRUE(packed.ok()) << packed.error().message();
        EXPECT_EQ(packed->lines.size(), 2u);
        EXPECT_EQ(packed->hash, read_lines_file(file("plain", lines), 0)->hash);
    }
    // Rows are never measured as the text of their JSON.
    for (const auto& [name, text] :
         {std::pair<const char*, std::string>{"a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"},
          {"b.txt", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"},
          {"c.json", "[{\"text\": \"one\"}, {\"text\": \"two\"}]"},
          {"d.csv", "text\none\ntwo\n"},
          {"e.jsonl", "{\"prompt\": \"on\", \"completion\": \"e\"}\n{\"content\": \"two\"}\n"},
          {"f.txt", "one\n\ntwo"}})
        for (const std::string& bytes : {text, test::gzipped(text)}) {
            const auto read = read_evaluation_text(file(name, bytes));
            ASSERT_TRUE(read.ok()) << name << read.error().message();
            EXPECT_EQ(read->text, "one\n\ntwo") << name;
        }
    const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}]})";
    for (const char* name : {"chats.jsonl", "chats.txt"})
        EXPECT_NE(
            message(read_evaluation_text(file(name, chat))).find("line 1: is a conversation; perplexity is measured"),
            std::string::npos);
    EXPECT_NE(message(read_evaluation_text(file("x.jsonl", "{\"a\": 1}\n"))).find("line 1: "), std::string::npos);
    EXPECT_NE(message(read_evaluation_text(file("e", "abc\xff"))).find("byte 3 is not UTF-8"), std::string::npos);
    EXPECT_EQ(read_evaluation_text(file("e",
                                        "\xEF\xBB\xBF"
                                        "abc"))
                  ->text,
              "abc");
    TextTask tiny({"t.txt", "too short", "h"}, {.context = 64}, nullptr);
    EXPECT_NE(message(tiny.prepare(subject)).find("t.txt: the text has"), std::string::npos);
    TextTask wide({"t.txt", long_text(), "h"}, {.context = 2048}, nullptr);
    EXPECT_EQ(message(wide.prepare(subject)), "a context of 2048 tokens is longer than the model's, 1024");
}

TEST_F(Tasks, AStoppedRunContinuesToTheSameResults) {
    const auto make = [] {
        std::vector<std::unique_ptr<Task>> tasks;
        tasks.push_back(
            std::make_unique<TextTask>(TextFile{"t", long_text(), "h"}, TextTaskOptions{.context = 64}, nullptr));
        return tasks;
    };
    const auto whole = make();
    const auto want = run_tasks(subject, 0, whole, 0, nullptr, {});
    ASSERT_TRUE(want.ok());
    std::atomic<bool> stop{false};
    JobHooks hooks;
    hooks.stop_requested = &stop;
    hooks.progress = [&](const Progress& p) { stop = p.done == 3; };
    const JobIdentity identity{{"a", "b"}};
    {
        auto journal = Journal::open(dir.path(), identity);
        ASSERT_TRUE(journal.ok());
        const auto tasks = make();
        const auto stopped = run_tasks(subject, 0, tasks, 0, journal->get(), hooks);
        ASSERT_FALSE(stopped.ok());
        EXPECT_NE(stopped.error().message().find("stopped on request after 3 of"), std::string::npos);
    }
    auto journal = Journal::open(dir.path(), identity);
    ASSERT_TRUE(journal.ok());
    stop = false;
    int64_t first = 0;
    hooks.progress = [&](const Progress& p) { first = first ? first : p.done; };
    const auto tasks = make();
    const auto got = run_tasks(subject, 0, tasks, 0, journal->get(), hooks);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(first, 4);
    EXPECT_EQ((*got)[0].metrics[0].estimate.value, (*want)[0].metrics[0].estimate.value);
    EXPECT_EQ((*got)[0].metrics[0].estimate.error, (*want)[0].metrics[0].estimate.error);
}

}  // namespace
}  // namespace nibble
