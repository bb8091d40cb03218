#include "architecture/config_rope.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nibble {
namespace {

// Returns yarn's temperature, 0.1 m ln(factor) + 1.
double mscale(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; }

Status read_yarn(ConfigFields& f, int64_t context, Rope& rope, float* scale) {
    rope.scaling = Rope::Scaling::yarn;
    NIBBLE_TRY(rope.factor, f.factor("factor"));
    NIBBLE_TRY(rope.original_context, f.integer_or("original_max_position_embeddings", context));
    NIBBLE_TRY(rope.beta_fast, f.factor_or("beta_fast", 32.0));
    NIBBLE_TRY(rope.beta_slow, f.factor_or("beta_slow", 1.0));
    NIBBLE_TRY(rope.truncate, f.boolean_or("truncate", true));
    NIBBLE_TRY(const double m, f.number_or("mscale", 0.0, 0.0, 1000.0));
    NIBBLE_TRY(const double m_all, f.number_or("mscale_all_dim", 0.0, 0.0, 1000.0));
    const double standard =
        m != 0.0 && m_all != 0.0 ? mscale(rope.factor, m) / mscale(rope.factor, m_all) : mscale(rope.factor, 1.0);
    NIBBLE_TRY(rope.attention_factor, f.number_or("attention_factor", standard, 1e-9, 1000.0));
    if (scale && m_all != 0.0) {
        const double all = mscale(rope.factor, m_all);
        *scale = static_cast<float>(*scale * all * all);
    }
    return Ok{};
}

// Factors per pair, for sequences of up to `original_context` tokens and for longer ones (Phi-3, arXiv 2404.14219).
Status read_longrope(ConfigFields& f, int64_t context, const RopeReading& reading, Rope& rope) {
    rope.scaling = Rope::Scaling::longrope;
    const int64_t original = reading.original_context > 0 ? reading.original_context : context;
    NIBBLE_TRY(rope.original_context, f.integer_or("original_max_position_embeddings", original));
    NIBBLE_TRY(rope.short_factors, f.numbers("short_factor"));
    NIBBLE_TRY(rope.long_factors, f.numbers("long_factor"));
    for (const auto& [key, list] :
         {std::pair{"short_factor", &rope.short_factors}, {"long_factor", &rope.long_factors}})
        if (std::ssize(*list) != rope.dims / 2 || std::ranges::any_of(*list, [](double x) { return !(x > 0); }))
            return f.bad(key, fmt::format("expected {} positive numbers", rope.dims / 2));
    NIBBLE_TRY(const double factor,
               f.factor_or("factor", static_cast<double>(context) / static_cast<double>(rope.original_context)));
    const double standard =
        factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(rope.original_context)));
    NIBBLE_TRY(const double attention, f.number_or("attention_factor", standard, 1e-9, 1000.0));
    NIBBLE_TRY(rope.short_attention, f.number_or("short_mscale", attention, 1e-9, 1000.0));
    NIBBLE_TRY(rope.long_attention, f.number_or("long_mscale", attention, 1e-9, 1000.0));
    if (reading.only_short_factors) rope.long_factors = rope.short_factors;
    return Ok{};
}

// Reads one object; `what` is its name in messages.
Result<Rope> read_rope_object(const Json& object, const std::string& what, int64_t dims, int64_t context,
                              const RopeReading& reading) {
    if (!object.is_object()) return fail("{} is not an object", what);
    ConfigFields f(object, what);
    NIBBLE_TRY(std::string type, f.string_or("rope_type", "default"));
    if (reading.longrope_names && (type == "su" || type == "yarn")) type = "longrope";
    Rope rope;
    if (type == "proportional") {  // a share of the pairs of the whole head
        NIBBLE_TRY(const double share, f.number_or("partial_rotary_factor", 1.0, 1e-9, 1.0));
        rope.scaling = Rope::Scaling::proportional;
        rope.pairs = static_cast<int>(static_cast<double>(dims) * share / 2);
        NIBBLE_TRY(rope.factor, f.factor_or("factor", 1.0));
    } else if (reading.partial) {
        NIBBLE_TRY(const double share, f.number_or("partial_rotary_factor", *reading.partial, 1e-9, 1.0));
        dims = static_cast<int64_t>(static_cast<double>(dims) * share);
    } else {
        NIBBLE_CHECK(f.must_be("partial_rotary_factor", 1.0));
    }
    if (dims % 2 != 0) return fail("config.json: a rotary embedding of {} dimensions: the number must be even", dims);
    rope.dims = static_cast<int>(dims);
    NIBBLE_TRY(rope.theta, f.number("rope_theta", 1.0, 1e15));
    if (rope.theta == 1.0) return f.bad("rope_theta", "expected a number above 1");
    if (type == "linear") {
        rope.scaling = Rope::Scaling::linear;
        NIBBLE_TRY(rope.factor, f.factor("factor"));
    } else if (type == "llama3") {
        rope.scaling = Rope::Scaling::llama3;
        NIBBLE_TRY(rope.factor, f.factor("factor"));
        NIBBLE_TRY(rope.low_freq_factor, f.factor("low_freq_factor"));
        NIBBLE_TRY(rope.high_freq_factor, f.factor("high_freq_factor"));
        NIBBLE_TRY(rope.original_context, f.integer_or("original_max_position_embeddings", context));
        if (!(rope.high_freq_factor > rope.low_freq_factor))
            return f.bad("high_freq_factor", "must be greater than low_freq_factor");
    } else if (type == "yarn") {
        NIBBLE_CHECK(read_yarn(f, context, rope, reading.scale));
    } else if (type == "longrope") {
        NIBBLE_CHECK(read_longrope(f, context, reading, rope));
    } else if (type == "dynamic" && f.has("alpha")) {  // Hunyuan's variant: theta changes, at any length
        NIBBLE_TRY(const double alpha, f.factor("alpha"));
        f.ignore("factor");
        rope.theta *= std::pow(alpha, static_cast<double>(dims) / static_cast<double>(dims - 2));
    } else if (type != "default" && type != "none" && type != "proportional") {
        return fail(
            "{}: rotary embedding '{}' is not supported (default, linear, llama3, yarn, longrope, proportional are)",
            what, type);
    }
    if (reading.query_beta && f.has("llama_4_scaling_beta")) {
        NIBBLE_TRY(const double beta, f.number("llama_4_scaling_beta", 0.0, 1000.0));
        NIBBLE_TRY(*reading.query_period, f.integer("original_max_position_embeddings"));
        *reading.query_beta = static_cast<float>(beta);
        f.ignore("max_position_embeddings");
    }
    for (const char* key : {"mrope_section", "mrope_interleaved"})
        f.ignore(key);  // text has the same position in all sections
    NIBBLE_CHECK(f.all_read());
    return rope;
}

}  // namespace

Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, const RopeReading& reading) {
    NIBBLE_CHECK(fields.must_be("rope_interleaved", false));
    const Json* parameters = fields.find("rope_parameters");
    if (!parameters) return fail("config.json: 'rope_parameters' is missing");
    return read_rope_object(*parameters, "config.json: rope_parameters", dims, context, reading);
}

Result<LayerRopes> read_layer_ropes(ConfigFields& fields, int64_t dims, int64_t context, const RopeReading& reading,
                                    int64_t sliding_dims) {
    const Json* parameters = fields.find("rope_parameters");
    if (!parameters) return fail("config.json: 'rope_parameters' is missing");
    const auto rope = [&](const char* kind, int64_t rotated) {
        return read_rope_object((*parameters)[kind], fmt::format("config.json: rope_parameters.{}", kind), rotated,
                                context, reading);
    };
    LayerRopes ropes;
    NIBBLE_TRY(ropes.full, rope("full_attention", dims));
    NIBBLE_TRY(ropes.sliding, rope("sliding_attention", sliding_dims > 0 ? sliding_dims : dims));
    return ropes;
}

void choose_rope_factors(ModelConfig& model, int64_t length) {
    const auto choose = [length](Rope& rope) {
        if (rope.scaling != Rope::Scaling::longrope) return;
        const bool beyond = length > rope.original_context;
        rope.factors = beyond ? rope.long_factors : rope.short_factors;
        rope.attention_factor = beyond ? rope.long_attention : rope.short_attention;
    };
    const auto choose_all = [&](std::vector<BlockConfig>& blocks) {
        for (BlockConfig& block : blocks) {
            if (auto* a = std::get_if<AttentionConfig>(&block.mixer)) choose(a->rope);
            if (auto* a = std::get_if<LatentAttentionConfig>(&block.mixer)) choose(a->rope);
        }
    };
    choose_all(model.blocks);
    if (model.prediction) choose_all(model.prediction->blocks);
}

}  // namespace nibble
