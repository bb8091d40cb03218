#include "quant/quant_report.h"

#include "base/fields.h"

#include <cmath>
#include <limits>

namespace nibble {
namespace {

double sqnr(double weight, double error) {
    if (error <= 0) return std::numeric_limits<double>::infinity();
    return 10.0 * std::log10(weight / error);
}

double ratio(double a, double b) { return b > 0 ? a / b : 0.0; }

// JSON has no infinity; null means "no error", or "undefined" if there are no weights.
Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json histogram_json(const Histogram& h) { return Json{{"first", h.first}, {"counts", h.counts}}; }

Result<Histogram> histogram_from(const Json& parent, std::string_view key) {
    NIBBLE_TRY(const Json* json, Fields(parent).object(key));
    Histogram h;
    NIBBLE_CHECK(Fields(*json).need("first", h.first));
    NIBBLE_CHECK(Fields(*json).need("counts", h.counts));
    if (h.first < 0 || h.first + h.counts.size() > 256) return fail("'{}': codes beyond 255", key);
    return h;
}

template <class T, class FromName>
Status named(const Json& json, std::string_view key, T& out, FromName from_name) {
    std::string text;
    NIBBLE_CHECK(Fields(json).need(key, text));
    const auto value = from_name(text);
    if (!value) return fail("'{}': unknown value '{}'", key, text);
    out = *value;
    return Ok{};
}

Json totals_json(const ReportTotals& t) {
    return Json{{"tensors", t.tensors},
                {"quantized_tensors", t.quantized_tensors},
                {"elements", t.elements},
                {"quantized_elements", t.quantized_elements},
                {"source_bytes", t.source_bytes},
                {"stored_bytes", t.stored_bytes},
                {"bits_per_element", t.bits_per_element},
                {"quantized_bits_per_element", t.quantized_bits_per_element},
                {"mse", ratio(t.squared_error, static_cast<double>(t.quantized_elements))},
                {"sqnr_db", finite_or_null(t.sqnr_db)},
                {"zeros", t.zeros},
                {"saturated", t.saturated},
                {"sign_flips", t.sign_flips}};
}

Json timing_json(const ReportTiming& t) {
    return Json{{"seconds", t.seconds},
                {"whole_seconds", t.whole_seconds},
                {"calibration_seconds", t.calibration_seconds},
                {"bytes_read", t.bytes_read},
                {"bytes_written", t.bytes_written},
                {"gigabytes_per_second", t.gigabytes_per_second},
                {"threads", t.threads},
                {"kernels", t.kernels},
                {"peak_anonymous_bytes", t.peak_anonymous_bytes},
                {"peak_resident_bytes", t.peak_resident_bytes},
                {"resumed_tensors", t.resumed_tensors},
                {"finished_at", t.finished_at},
                {"command", t.command},
                {"output", t.output},
                {"verified", t.verified}};
}

Result<ReportTiming> timing_from(const Json& json) {
    ReportTiming t;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("seconds", t.seconds));
    NIBBLE_CHECK(fields.need("bytes_read", t.bytes_read));
    NIBBLE_CHECK(fields.need("bytes_written", t.bytes_written));
    NIBBLE_CHECK(fields.need("gigabytes_per_second", t.gigabytes_per_second));
    NIBBLE_CHECK(fields.need("threads", t.threads));
    NIBBLE_CHECK(fields.need("kernels", t.kernels));
    NIBBLE_CHECK(fields.need("peak_anonymous_bytes", t.peak_anonymous_bytes));
    NIBBLE_CHECK(fields.need("peak_resident_bytes", t.peak_resident_bytes));
    NIBBLE_CHECK(fields.need("resumed_tensors", t.resumed_tensors));
    NIBBLE_CHECK(fields.need("finished_at", t.finished_at));
    NIBBLE_CHECK(fields.need("command", t.command));
    NIBBLE_CHECK(fields.need("verified", t.verified));
    // Reports of earlier versions lack them.
    if (json.contains("whole_seconds")) NIBBLE_CHECK(fields.need("whole_seconds", t.whole_seconds));
    if (json.contains("calibration_seconds")) NIBBLE_CHECK(fields.need("calibration_seconds", t.calibration_seconds));
    if (json.contains("output")) NIBBLE_CHECK(fields.need("output", t.output));
    return t;
}

Json outputs_json(const std::vector<LayerOutputError>& errors) {
    Json list = Json::array();
    for (const LayerOutputError& e : errors)
        list.push_back({{"module", e.module},
                        {"rows", e.rows},
                        {"energy", e.energy},
                        {"error_before", e.before},
                        {"error_after", e.after},
                        {"before_db", finite_or_null(sqnr(e.energy, e.before))},
                        {"after_db", finite_or_null(sqnr(e.energy, e.after))}});
    return list;
}

Result<std::vector<LayerOutputError>> outputs_from(const Json& json) {
    std::vector<LayerOutputError> errors;
    if (!json.contains("layer_outputs")) return errors;  // reports of earlier versions
    NIBBLE_TRY(const Json* list, Fields(json).array("layer_outputs"));
    for (const Json& e : *list) {
        LayerOutputError& error = errors.emplace_back();
        Fields entry(e);
        NIBBLE_CHECK(entry.need("module", error.module));
        NIBBLE_CHECK(entry.need("rows", error.rows));
        NIBBLE_CHECK(entry.need("energy", error.energy));
        NIBBLE_CHECK(entry.need("error_before", error.before));
        NIBBLE_CHECK(entry.need("error_after", error.after));
    }
    return errors;
}

Json gaps_json(const std::vector<CalibrationGap>& gaps) {
    Json list = Json::array();
    for (const CalibrationGap& g : gaps)
        list.push_back({{"kind", gap_name(g.kind)}, {"count", g.count}, {"text", g.text}, {"modules", g.modules}});
    return list;
}

Result<std::vector<CalibrationGap>> gaps_from(const Json& json) {
    std::vector<CalibrationGap> gaps;
    if (!json.contains("gaps")) return gaps;  // reports of earlier versions
    NIBBLE_TRY(const Json* list, Fields(json).array("gaps"));
    for (const Json& g : *list) {
        CalibrationGap& gap = gaps.emplace_back();
        NIBBLE_CHECK(named(g, "kind", gap.kind, gap_from_name));
        Fields entry(g);
        NIBBLE_CHECK(entry.need("count", gap.count));
        NIBBLE_CHECK(entry.need("text", gap.text));
        NIBBLE_CHECK(entry.need("modules", gap.modules));
    }
    return gaps;
}

}  // namespace

Histogram::Histogram(std::span<const int64_t, 256> all) {
    int begin = 0, end = 256;
    while (begin < end && all[begin] == 0) ++begin;
    while (end > begin && all[end - 1] == 0) --end;
    if (begin < end) first = begin;
    counts.assign(all.begin() + begin, all.begin() + end);
}

int64_t Histogram::at(int code) const {
    const int64_t i = int64_t{code} - first;
    return i >= 0 && i < static_cast<int64_t>(counts.size()) ? counts[i] : 0;
}

int64_t Histogram::total() const {
    int64_t sum = 0;
    for (int64_t n : counts) sum += n;
    return sum;
}

double TensorReport::bits_per_element() const {
    return ratio(8.0 * static_cast<double>(stored_bytes), static_cast<double>(elements));
}
double TensorReport::mse() const { return ratio(squared_error, static_cast<double>(elements)); }
double TensorReport::sqnr_db() const { return sqnr(squared_weight, squared_error); }
double TensorReport::raised_share() const {
    return ratio(static_cast<double>(raised_blocks), static_cast<double>(blocks));
}

bool loses_most(const TensorReport& t, double limit_db) { return t.squared_weight > 0 && !(t.sqnr_db() >= limit_db); }

void TensorReport::add(const QuantStats& stats) {
    blocks = stats.blocks;
    squared_error = stats.squared_error;
    squared_weight = stats.squared_weight;
    max_error = stats.max_error;
    zeros = stats.zeros;
    saturated = stats.saturated;
    sign_flips = stats.sign_flips;
    raised_blocks = stats.raised_blocks;
    codes = Histogram(stats.codes);
    scales = Histogram(stats.scales);
}

ReportTotals QuantReport::totals() const {
    ReportTotals t;
    int64_t quantized_bytes = 0;
    for (const TensorReport& r : tensors) {
        ++t.tensors;
        t.elements += r.elements;
        t.source_bytes += r.source_bytes;
        t.stored_bytes += r.stored_bytes;
        if (!r.quantized()) continue;
        ++t.quantized_tensors;
        t.quantized_elements += r.elements;
        quantized_bytes += r.stored_bytes;
        t.squared_error += r.squared_error;
        t.squared_weight += r.squared_weight;
        t.zeros += r.zeros;
        t.saturated += r.saturated;
        t.sign_flips += r.sign_flips;
    }
    t.bits_per_element = ratio(8.0 * static_cast<double>(t.stored_bytes), static_cast<double>(t.elements));
    t.quantized_bits_per_element =
        ratio(8.0 * static_cast<double>(quantized_bytes), static_cast<double>(t.quantized_elements));
    t.sqnr_db = sqnr(t.squared_weight, t.squared_error);
    return t;
}

Json to_json(const TensorReport& t) {
    Json json{{"name", t.name},
              {"shape", t.shape},
              {"dtype", dtype_name(t.dtype)},
              {"format", format_name(t.format)},
              {"method", t.method},
              {"activation", activation_name(t.activation)},
              {"scale_group", t.scale_group},
              {"reason", t.reason},
              {"elements", t.elements},
              {"source_bytes", t.source_bytes},
              {"stored_bytes", t.stored_bytes},
              {"bits_per_element", t.bits_per_element()}};
    if (t.quantized()) {
        json["mse"] = t.mse();
        json["sqnr_db"] = finite_or_null(t.sqnr_db());
        json["raised_share"] = t.raised_share();
        json["blocks"] = t.blocks;
        json["squared_error"] = t.squared_error;
        json["squared_weight"] = t.squared_weight;
        json["max_error"] = t.max_error;
        json["zeros"] = t.zeros;
        json["saturated"] = t.saturated;
        json["sign_flips"] = t.sign_flips;
        json["raised_blocks"] = t.raised_blocks;
        json["codes"] = histogram_json(t.codes);
        json["scales"] = histogram_json(t.scales);
        json["amax"] = t.amax;
        json["search_multiplier"] = t.search_multiplier;
        json["tensor_scale"] = t.tensor_scale;
        json["content_hash"] = t.content_hash;
        if (t.blind_search) json["blind_search"] = true;
        if (t.gaps.blind_blocks > 0) json["blind_blocks"] = t.gaps.blind_blocks;
        if (t.gaps.no_feedback) json["no_feedback"] = true;
        if (t.gaps.too_small) json["too_small"] = true;
    }
    if (t.input_scale) json["input_scale"] = *t.input_scale;
    return json;
}

Result<TensorReport> tensor_report_from_json(const Json& json) {
    TensorReport t;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("name", t.name));
    NIBBLE_CHECK(fields.need("shape", t.shape));
    NIBBLE_CHECK(named(json, "dtype", t.dtype, dtype_from_name));
    NIBBLE_CHECK(named(json, "format", t.format, format_from_name));
    NIBBLE_CHECK(fields.need("method", t.method));
    NIBBLE_CHECK(named(json, "activation", t.activation, activation_from_name));
    NIBBLE_CHECK(fields.need("scale_group", t.scale_group));
    NIBBLE_CHECK(fields.need("reason", t.reason));
    NIBBLE_CHECK(fields.need("elements", t.elements));
    NIBBLE_CHECK(fields.need("source_bytes", t.source_bytes));
    NIBBLE_CHECK(fields.need("stored_bytes", t.stored_bytes));
    if (t.quantized()) {
        NIBBLE_CHECK(fields.need("blocks", t.blocks));
        NIBBLE_CHECK(fields.need("squared_error", t.squared_error));
        NIBBLE_CHECK(fields.need("squared_weight", t.squared_weight));
        NIBBLE_CHECK(fields.need("max_error", t.max_error));
        NIBBLE_CHECK(fields.need("zeros", t.zeros));
        NIBBLE_CHECK(fields.need("saturated", t.saturated));
        NIBBLE_CHECK(fields.need("sign_flips", t.sign_flips));
        NIBBLE_CHECK(fields.need("raised_blocks", t.raised_blocks));
        NIBBLE_TRY(t.codes, histogram_from(json, "codes"));
        NIBBLE_TRY(t.scales, histogram_from(json, "scales"));
        NIBBLE_CHECK(fields.need("amax", t.amax));
        NIBBLE_CHECK(fields.need("search_multiplier", t.search_multiplier));
        NIBBLE_CHECK(fields.need("tensor_scale", t.tensor_scale));
        NIBBLE_CHECK(fields.need("content_hash", t.content_hash));
        const auto rare = [&](std::string_view key, auto& out) {
            return json.contains(key) ? fields.need(key, out) : Status(Ok{});
        };
        NIBBLE_CHECK(rare("blind_search", t.blind_search));
        NIBBLE_CHECK(rare("blind_blocks", t.gaps.blind_blocks));
        NIBBLE_CHECK(rare("no_feedback", t.gaps.no_feedback));
        NIBBLE_CHECK(rare("too_small", t.gaps.too_small));
    }
    if (json.contains("input_scale")) NIBBLE_CHECK(fields.need("input_scale", t.input_scale.emplace()));
    return t;
}

Json to_json_without_tensors(const QuantReport& r) {
    Json kv_scales = Json::object();
    for (const auto& [name, value] : r.kv_scales) kv_scales[name] = value;
    return Json{{"source", r.source},
                {"recipe", r.recipe},
                {"settings", r.settings},
                {"versions", r.versions},
                {"kv", kv_name(r.kv)},
                {"kv_scales", std::move(kv_scales)},
                {"weights_only", r.weights_only},
                {"warnings", r.warnings},
                {"gaps", gaps_json(r.gaps)},
                {"totals", totals_json(r.totals())},
                {"layer_outputs", outputs_json(r.output_errors)},
                {"plan", r.plan},
                {"timing", timing_json(r.timing)}};
}

Json to_json(const QuantReport& r) {
    Json json = to_json_without_tensors(r), tensors = Json::array();
    for (const TensorReport& t : r.tensors) tensors.push_back(to_json(t));
    json["tensors"] = std::move(tensors);
    return json;
}

std::string to_json_text(const QuantReport& r) {
    const auto dump = [](const Json& json, int indent) {
        return json.dump(indent, ' ', false, Json::error_handler_t::replace);
    };
    std::string text = dump(to_json_without_tensors(r), 1);
    text.erase(text.rfind('\n'));  // removes the newline before the closing brace
    text += ",\n \"tensors\": [";
    for (size_t i = 0; i < r.tensors.size(); ++i) text += (i ? ",\n  " : "\n  ") + dump(to_json(r.tensors[i]), -1);
    text += "\n ]\n}\n";
    return text;
}

Result<QuantReport> quant_report_from_json(const Json& json) {
    QuantReport r;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("source", r.source));
    NIBBLE_CHECK(fields.need("recipe", r.recipe));
    NIBBLE_TRY(const Json* settings, fields.object("settings"));
    r.settings = *settings;
    NIBBLE_TRY(const Json* versions, fields.object("versions"));
    r.versions = *versions;
    NIBBLE_CHECK(named(json, "kv", r.kv, kv_from_name));
    NIBBLE_TRY(const Json* kv_scales, fields.object("kv_scales"));
    for (const auto& [name, value] : kv_scales->items()) {
        float scale = 0;
        NIBBLE_CHECK(Fields(*kv_scales).need(name, scale));
        r.kv_scales.emplace_back(name, scale);
    }
    NIBBLE_CHECK(fields.need("weights_only", r.weights_only));
    NIBBLE_CHECK(fields.need("warnings", r.warnings));
    NIBBLE_TRY(r.gaps, gaps_from(json));
    NIBBLE_TRY(const Json* tensors, fields.array("tensors"));
    for (const Json& t : *tensors) {
        NIBBLE_TRY(auto tensor, tensor_report_from_json(t).within(fmt::format("tensors[{}]", r.tensors.size())));
        r.tensors.push_back(std::move(tensor));
    }
    NIBBLE_CHECK(fields.need("plan", r.plan));
    NIBBLE_TRY(r.output_errors, outputs_from(json));
    NIBBLE_TRY(const Json* timing, fields.object("timing"));
    NIBBLE_TRY(r.timing, timing_from(*timing).within("timing"));
    return r;
}

}  // namespace nibble
