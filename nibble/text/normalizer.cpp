#include "text/normalizer.h"

#include "text/tokenizer_json.h"

namespace nibble {
namespace {

std::string collapse_spaces(std::string_view text) {
    std::string out;
    for (const char c : text)
        if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
    if (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
}

}  // namespace

Result<std::string> ReplaceStep::apply(std::string_view text, Meter& meter) const {
    std::string out;
    size_t done = 0;
    RegexSearch search(pattern, text, meter);
    if (!meter.pay_bytes(static_cast<int64_t>(text.size()))) return meter.error();
    for (Span match;;) {
        NIBBLE_TRY(const bool found, search.next(match));
        if (!found) break;
        if (!meter.pay_bytes(static_cast<int64_t>(content.size()))) return meter.error();
        out += text.substr(done, match.begin - done);
        out += content;
        done = match.end;
    }
    out += text.substr(done);
    return out;
}

Result<Pattern> parse_pattern(const Json& component) {
    const auto it = component.find("pattern");
    if (it != component.end() && it->is_string()) return Pattern::literal(it->get<std::string>());
    if (it == component.end() || !it->is_object() || it->size() != 1)
        return fail("'pattern' is not one String or Regex");
    if (it->contains("Regex")) {
        NIBBLE_TRY(const std::string regex, json_string(*it, "Regex"));
        return Pattern::regex(regex);
    }
    NIBBLE_TRY(std::string text, json_string(*it, "String"));
    return Pattern::literal(std::move(text));
}

Result<ReplaceStep> parse_replace(const Json& component) {
    NIBBLE_TRY(Pattern pattern, parse_pattern(component));
    NIBBLE_TRY(std::string content, json_string(component, "content"));
    return ReplaceStep{std::move(pattern), std::move(content)};
}

Result<Normalizer> Normalizer::parse(const Json& component) {
    Normalizer out;
    NIBBLE_CHECK(out.add(component, 0));
    return out;
}

Status Normalizer::add(const Json& component, int depth) {
    if (component.is_null()) return Ok{};
    NIBBLE_TRY(const std::string type, component_type(component, "normalizer"));
    if (type == "Sequence") {
        const auto list = component.find("normalizers");
        if (depth > 8 || list == component.end() || !list->is_array())
            return fail("normalizer Sequence: 'normalizers' is not a list");
        for (const Json& step : *list) NIBBLE_CHECK(add(step, depth + 1));
        return Ok{};
    }
    if (type == "NFC")
        steps_.emplace_back(NormalForm::nfc);
    else if (type == "NFD")
        steps_.emplace_back(NormalForm::nfd);
    else if (type == "NFKC")
        steps_.emplace_back(NormalForm::nfkc);
    else if (type == "NFKD")
        steps_.emplace_back(NormalForm::nfkd);
    else if (type == "Replace") {
        NIBBLE_TRY(auto replace, parse_replace(component).within("normalizer Replace"));
        steps_.emplace_back(std::move(replace));
    } else if (type == "Prepend") {
        NIBBLE_TRY(auto text, json_string(component, "prepend").within("normalizer Prepend"));
        steps_.emplace_back(Prepend{std::move(text)});
    } else {
        return fail("normalizer '{}' is not supported (supported: NFC, NFD, NFKC, NFKD, Replace, Prepend, Sequence)",
                    type);
    }
    return Ok{};
}

Normalizer Normalizer::sentencepiece(bool collapse, bool prefix, bool escape) {
    Normalizer out;
    if (collapse) out.steps_.emplace_back(Collapse{});
    if (prefix) out.steps_.emplace_back(Prepend{" "});
    if (escape) out.steps_.emplace_back(ReplaceStep{Pattern::literal(" "), "\u2581"});
    return out;
}

int64_t Normalizer::most_shrink() const {
    int64_t product = 1;
    for (const Step& step : steps_) {
        if (const auto* form = std::get_if<NormalForm>(&step)) {
            // A compatibility decomposition turns at most 4 bytes into 1, a composition at most 9 into 3 (Hangul).
            product *= *form == NormalForm::nfkc || *form == NormalForm::nfkd ? 12 : 3;
        } else if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
            const size_t before = replace->pattern.shortest(), after = replace->content.size();
            if (before == 0 || after == 0) return 0;
            product *= static_cast<int64_t>((before + after - 1) / after);
        } else if (std::holds_alternative<Collapse>(step)) {
            return 0;
        }
        if (product > 1 << 20) return 0;
    }
    return product;
}

Result<std::string> Normalizer::apply(std::string_view text, Meter& meter) const {
    std::string out(text);
    for (const Step& step : steps_) {
        if (!meter.pay_bytes(static_cast<int64_t>(out.size()))) return meter.error();
        if (const auto* form = std::get_if<NormalForm>(&step)) {
            // Two steps per character: the search for compositions looks at one character at a time.
            if (!meter.pay_steps(2 * static_cast<int64_t>(out.size()))) return meter.error();
            out = normal_form(out, *form);
        } else if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
            NIBBLE_TRY(out, replace->apply(out, meter));
        } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
            if (!meter.pay_bytes(static_cast<int64_t>(prepend->text.size()))) return meter.error();
            if (!out.empty()) out.insert(0, prepend->text);
        } else {
            out = collapse_spaces(out);
        }
    }
    return out;
}

}  // namespace nibble
