#include "model/config/config_rope.h"

#include <cmath>

namespace nibble {
namespace {

// 0.1 m ln(factor) + 1, yarn's temperature.
double mscale(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; }

Status read_yarn(ConfigFields& f, int64_t context, Rope& rope, float* scale) {
    rope.scaling = Rope::Scaling::yarn;
    NIBBLE_TRY(rope.factor, f.number("factor"));
    NIBBLE_TRY(rope.original_context, f.integer_or("original_max_position_embeddings", context));
    NIBBLE_TRY(rope.beta_fast, f.number_or("beta_fast", 32.0));
    NIBBLE_TRY(rope.beta_slow, f.number_or("beta_slow", 1.0));
    NIBBLE_TRY(rope.truncate, f.boolean_or("truncate", true));
    NIBBLE_TRY(const double m, f.number_or("mscale", 0.0));
    NIBBLE_TRY(const double m_all, f.number_or("mscale_all_dim", 0.0));
    const double standard =
        m != 0.0 && m_all != 0.0 ? mscale(rope.factor, m) / mscale(rope.factor, m_all) : mscale(rope.factor, 1.0);
    NIBBLE_TRY(rope.attention_factor, f.number_or("attention_factor", standard));
    if (!(rope.factor > 0)) return f.bad("factor", "expected a positive number");
    if (scale && m_all != 0.0) {
        const double all = mscale(rope.factor, m_all);
        *scale = static_cast<float>(*scale * all * all);
    }
    return Ok{};
}

}  // namespace

Result<Rope> read_rope_object(const Json& object, const std::string& what, int64_t dims, int64_t context,
                              float* scale) {
    if (!object.is_object()) return fail("{} is not an object", what);
    if (dims % 2 != 0) return fail("config.json: a rotary embedding of {} dimensions: they come in pairs", dims);
    ConfigFields f(object, what);
    Rope rope;
    rope.dims = static_cast<int>(dims);
    NIBBLE_TRY(rope.theta, f.number("rope_theta"));
    if (!(rope.theta > 1.0)) return f.bad("rope_theta", "expected a number above 1");
    NIBBLE_CHECK(f.must_be("partial_rotary_factor", 1.0));
    NIBBLE_TRY(const std::string type, f.string_or("rope_type", "default"));
    if (type == "linear") {
        rope.scaling = Rope::Scaling::linear;
        NIBBLE_TRY(rope.factor, f.number("factor"));
        if (!(rope.factor > 0)) return f.bad("factor", "expected a positive number");
    } else if (type == "llama3") {
        rope.scaling = Rope::Scaling::llama3;
        NIBBLE_TRY(rope.factor, f.number("factor"));
        NIBBLE_TRY(rope.low_freq_factor, f.number("low_freq_factor"));
        NIBBLE_TRY(rope.high_freq_factor, f.number("high_freq_factor"));
        NIBBLE_TRY(rope.original_context, f.integer_or("original_max_position_embeddings", context));
        if (!(rope.factor > 0)) return f.bad("factor", "expected a positive number");
        if (!(rope.high_freq_factor > rope.low_freq_factor))
            return f.bad("high_freq_factor", "expected more than low_freq_factor");
    } else if (type == "yarn") {
        NIBBLE_CHECK(read_yarn(f, context, rope, scale));
    } else if (type != "default" && type != "none") {
        return fail("{}: rotary embedding '{}' is not supported (default, linear, llama3, yarn are)", what, type);
    }
    NIBBLE_CHECK(f.all_read());
    return rope;
}

Result<Rope> read_rope(ConfigFields& fields, int64_t dims, int64_t context, float* scale) {
    NIBBLE_CHECK(fields.must_be("rope_interleaved", false));
    const Json* parameters = fields.find("rope_parameters");
    if (!parameters) return fail("config.json: 'rope_parameters' is missing");
    return read_rope_object(*parameters, "config.json: rope_parameters", dims, context, scale);
}

}  // namespace nibble
