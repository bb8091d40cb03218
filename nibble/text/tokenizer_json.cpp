#include "text/tokenizer_json.h"

#include <unordered_set>

namespace nibble {
namespace {

constexpr size_t most_levels = 64;

// SAX reader: collects model.vocab and model.merges in vectors and passes all other events to nlohmann's builder.
class Reader {
public:
    explicit Reader(TokenizerJson& out) : out_(out), dom_(out.document, false) {}

    bool null() { return place_ == Place::document ? dom_.null() : odd("null"); }
    bool boolean(bool v) { return place_ == Place::document ? dom_.boolean(v) : odd("a boolean"); }
    bool number_integer(Json::number_integer_t v) {
        if (place_ == Place::document) return dom_.number_integer(v);
        return place_ == Place::scored ? score(double(v)) : odd("a negative number");
    }
    bool number_unsigned(Json::number_unsigned_t v) {
        if (place_ == Place::document) return dom_.number_unsigned(v);
        if (place_ == Place::scored) return score(double(v));
        if (place_ != Place::vocabulary) return odd("a number");
        out_.vocabulary.emplace_back(std::move(key_), v);
        return true;
    }
    bool number_float(Json::number_float_t v, const std::string& s) {
        if (place_ == Place::document) return dom_.number_float(v, s);
        return place_ == Place::scored ? score(v) : odd("a fraction");
    }
    bool binary(Json::binary_t&) { return odd("binary data"); }
    bool string(std::string& v) {
        if (place_ == Place::document) return dom_.string(v);
        if (place_ == Place::vocabulary) return odd("a string");
        if (in_item_) {
            if (item_.size() == 2 || (place_ == Place::scored && item_.size() == 1)) return odd("a string");
            item_.push_back(std::move(v));
            return true;
        }
        if (place_ == Place::scored) return odd("a string");
        // "left right", the form before 2024; neither part contains a space.
        const size_t space = v.find(' ');
        if (space == v.npos || v.find(' ', space + 1) != v.npos) return not_two_parts();
        out_.merges.emplace_back(v.substr(0, space), v.substr(space + 1));
        return true;
    }
    bool start_object(size_t n) {
        if (at_model("vocab")) return enter(Place::vocabulary);
        if (place_ != Place::document) return odd("an object");
        keys_.emplace_back();
        return deeper() && dom_.start_object(n);
    }
    bool end_object() {
        if (place_ == Place::vocabulary) return leave();
        keys_.pop_back();
        --depth_;
        return dom_.end_object();
    }
    bool start_array(size_t n) {
        if (at_model("vocab")) return enter(Place::scored);
        if (at_model("merges")) return enter(Place::merges);
        if (place_ != Place::document) {
            if (place_ == Place::vocabulary || in_item_) return odd("a list");
            item_.clear();
            has_score_ = false;
            return in_item_ = true;
        }
        return deeper() && dom_.start_array(n);
    }
    bool end_array() {
        if (place_ != Place::document) return in_item_ ? end_item() : leave();
        --depth_;
        return dom_.end_array();
    }
    bool key(std::string& k) {
        key_ = k;
        if (place_ == Place::vocabulary) return true;
        if (!keys_.back().insert(k).second) return stop(fmt::format("duplicate key {:?}", k.substr(0, 200)));
        if (keys_.size() == 1 && depth_ == 1) in_model_ = k == "model";
        if (keys_.back().size() > 4096) return stop("an object has over 4096 keys");
        return dom_.key(k);
    }
    bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
        return stop(fmt::format("not JSON at byte {}", position));
    }

    std::string problem;

private:
    enum class Place { document, vocabulary, scored, merges };

    bool stop(std::string reason) {
        problem = std::move(reason);
        return false;
    }
    const char* where() const { return place_ == Place::merges ? "model.merges" : "model.vocab"; }
    bool odd(std::string_view what) { return stop(fmt::format("unexpected {} in {}", what, where())); }
    bool not_two_parts() { return stop(fmt::format("model.merges: entry {} is not two parts", out_.merges.size())); }
    bool deeper() { return ++depth_ <= most_levels || stop("nested too deep"); }
    bool at_model(std::string_view field) const {
        return place_ == Place::document && depth_ == 2 && keys_.size() == 2 && in_model_ && key_ == field;
    }
    bool enter(Place place) {
        place_ = place;
        return true;
    }
    bool leave() {
        place_ = Place::document;
        return dom_.null();  // placeholder in the document
    }
    bool score(double v) {
        if (!in_item_ || item_.size() != 1 || has_score_) return odd("a number");
        score_ = v;
        return has_score_ = true;
    }
    bool end_item() {
        in_item_ = false;
        if (place_ == Place::merges) {
            if (item_.size() != 2) return not_two_parts();
            out_.merges.emplace_back(std::move(item_[0]), std::move(item_[1]));
            return true;
        }
        if (item_.size() != 1 || !has_score_) return odd("an entry that is not [piece, score]");
        out_.scored.emplace_back(std::move(item_[0]), score_);
        return true;
    }

    TokenizerJson& out_;
    nlohmann::detail::json_sax_dom_parser<Json> dom_;
    std::vector<std::unordered_set<std::string>> keys_;
    std::vector<std::string> item_;
    std::string key_;
    size_t depth_ = 0;
    double score_ = 0;
    Place place_ = Place::document;
    bool in_model_ = false, in_item_ = false, has_score_ = false;
};

}  // namespace

Result<TokenizerJson> parse_tokenizer_json(std::string_view text) {
    if (const size_t zero = text.find('\0'); zero != text.npos) return fail("not JSON: zero byte at {}", zero);
    TokenizerJson out;
    Reader reader(out);
    bool fine = false;
    try {
        fine = Json::sax_parse(text.begin(), text.end(), &reader);
    } catch (const std::exception& e) {
        reader.problem = "a number out of range";
    }
    if (!fine) return fail("tokenizer.json: {}", reader.problem);
    if (!out.document.is_object()) return fail("tokenizer.json: not an object");
    return out;
}

Result<std::string> component_type(const Json& component, std::string_view what) {
    if (!component.is_object()) return fail("{} is not an object", what);
    NIBBLE_TRY(std::string type, json_string(component, "type").within(what));
    if (type.size() > 64 || type.find('\n') != type.npos)
        return fail("{}: 'type' is no name: {:?}", what, type.substr(0, 64));
    return type;
}

Result<bool> json_flag(const Json& object, const char* field, bool missing) {
    const auto it = object.find(field);
    if (it == object.end() || it->is_null()) return missing;
    if (!it->is_boolean()) return fail("'{}' is not true or false", field);
    return it->get<bool>();
}

Result<std::string> json_string(const Json& object, const char* field) {
    const auto it = object.find(field);
    if (it == object.end() || !it->is_string()) return fail("'{}' is not a string", field);
    return it->get<std::string>();
}

}  // namespace nibble
