#include "checkpoint/tokenizer_file.h"

#include "io/json_events.h"

namespace nibble {
namespace {

constexpr size_t most_levels = 64, max_keys = 4096;  // ordered objects search their keys linearly, so the number is
                                                     // limited

class Reader : public JsonEvents {
public:
    explicit Reader(TokenizerFile& out) : out_(out) {}

    bool open_object() override {
        if (skipping()) return skip();
        if (at("vocab") && !in_vocabulary_) return once(seen_vocabulary_) && (in_vocabulary_ = true);
        if (in_vocabulary_ || in_merges_) return unexpected("an object");
        return open(Json::object());
    }
    bool close_object() override {
        if (skipping()) return unskip();
        if (in_vocabulary_) {
            in_vocabulary_ = false;
            return true;
        }
        path_.pop_back();
        return true;
    }
    bool open_array() override {
        if (skipping()) return skip();
        if (in_merges_ && !in_pair_) return in_pair_ = true;
        if (in_vocabulary_ || in_merges_) return unexpected("an array");
        if (at("vocab")) return once(seen_vocabulary_) && skip();  // a Unigram vocabulary; the model type shows this
        if (at("merges")) return once(seen_merges_) && (in_merges_ = true);
        return open(Json::array());
    }
    bool close_array() override {
        if (skipping()) return unskip();
        if (in_pair_) return close_pair();
        if (in_merges_) {
            in_merges_ = false;
            return true;
        }
        path_.pop_back();
        return true;
    }
    bool key(std::string& k) override {
        if (skipping()) return true;
        key_ = std::move(k);
        if (in_vocabulary_) return true;
        if (path_.back()->contains(key_)) return stop(fmt::format("duplicate key {}", show_name(key_)));
        if (path_.back()->size() >= max_keys) return stop(fmt::format("an object has over {} keys", max_keys));
        return true;
    }
    bool text(std::string& v) override {
        if (skipping()) return true;
        if (in_vocabulary_) return unexpected("a string");
        if (in_pair_) {
            pair_.push_back(std::move(v));
            return true;
        }
        return in_merges_ ? old_pair(v) : put(std::move(v));
    }
    bool whole_number(uint64_t v) override {
        if (skipping()) return true;
        if (!in_vocabulary_) return in_merges_ ? unexpected("a number") : put(v);
        out_.vocabulary.emplace_back(std::move(key_), v);
        return true;
    }
    // BPE needs no negative numbers or fractions.
    bool other(std::string_view what) override {
        if (skipping()) return true;
        if (in_vocabulary_ || in_merges_) return unexpected(what);
        if (what == "true" || what == "false") return put(what == "true");
        return put(Json());
    }

private:
    bool skipping() const { return skipped_ > 0; }
    bool skip() { return ++skipped_ <= most_levels || stop(fmt::format("nested deeper than {} levels", most_levels)); }
    bool unskip() {
        --skipped_;
        return true;
    }
    // key() finds duplicates only in the document, which does not contain these two.
    bool once(bool& seen) {
        if (seen) return stop(fmt::format("duplicate key {}", show_name(key_)));
        return seen = true;
    }
    bool at(std::string_view field) const { return path_.size() == 2 && in_model_ && key_ == field; }

    Json* add(Json value) {
        if (path_.empty()) return &(out_.document = std::move(value));
        Json& parent = *path_.back();
        if (path_.size() == 1) in_model_ = key_ == "model";
        if (!parent.is_object()) return &parent.emplace_back(std::move(value));
        return &(parent[key_] = std::move(value));
    }
    bool put(Json value) {
        add(std::move(value));
        return true;
    }
    bool open(Json container) {
        if (path_.size() >= most_levels) return stop(fmt::format("nested deeper than {} levels", most_levels));
        path_.push_back(add(std::move(container)));  // pointers stay valid: a parent grows only after its child is
                                                     // closed
        return true;
    }
    bool close_pair() {
        in_pair_ = false;
        if (pair_.size() != 2) return stop(fmt::format("merge {} is not two parts", out_.merges.size()));
        out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
        pair_.clear();
        return true;
    }
    // Parses "left right", the form before 2024; parts contain no spaces.
    bool old_pair(const std::string& v) {
        const size_t space = v.find(' ');
        if (space == v.npos || v.find(' ', space + 1) != v.npos)
            return stop(fmt::format("merge {} is not two parts", out_.merges.size()));
        out_.merges.emplace_back(v.substr(0, space), v.substr(space + 1));
        return true;
    }

    TokenizerFile& out_;
    std::vector<Json*> path_;
    std::string key_;
    std::vector<std::string> pair_;
    bool in_model_ = false, in_vocabulary_ = false, in_merges_ = false, in_pair_ = false;
    bool seen_vocabulary_ = false, seen_merges_ = false;
    size_t skipped_ = 0;
};

}  // namespace

Json TokenizerFile::model(const char* field) const {
    const auto model = document.find("model");
    return model != document.end() && model->is_object() ? model->value(field, Json()) : Json();
}

Result<TokenizerFile> parse_tokenizer_file(std::string_view text) {
    TokenizerFile out;
    Reader reader(out);
    NIBBLE_CHECK(read_json_events(text, reader));
    if (!out.document.is_object()) return fail("is not a JSON object");
    return out;
}

}  // namespace nibble
