#include "io/safetensors_header.h"

#include "base/checked.h"
#include "io/json_events.h"
#include "io/safetensors.h"

#include <fmt/ranges.h>

#include <limits>
#include <span>

namespace nibble {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
    constexpr size_t shown = 8;
    if (shape.size() <= shown) return fmt::format("[{}]", fmt::join(shape, ", "));
    return fmt::format("[{}, ... {} dimensions]", fmt::join(shape.first(shown), ", "), shape.size());
}

class HeaderReader : public JsonEvents {
public:
    SafetensorsHeader header;

    bool open_object() override {
        switch (at_) {
            case At::start:
                return go(At::names);
            case At::metadata_value:
                return go(At::metadata);
            case At::entry_value:
                return go(At::entry);
            default:
                return unexpected("an object");
        }
    }

    bool close_object() override {
        switch (at_) {
            case At::names:
                return go(At::end);
            case At::metadata:
                return go(At::names);
            case At::entry:
                return finish_entry() && go(At::names);
            default:
                return unexpected("the end of an object");
        }
    }

    bool open_array() override {
        switch (at_) {
            case At::shape:
                return go(At::shape_items);
            case At::offsets:
                return go(At::offset_items);
            default:
                return unexpected("an array");
        }
    }

    bool close_array() override {
        if (at_ == At::offset_items && offsets_ != 2)
            return stop(fmt::format("{}: data_offsets needs two numbers, has {}", tensor(), offsets_));
        return go(At::entry);
    }

    bool key(std::string& k) override {
        switch (at_) {
            case At::names:
                return begin_value(k);
            case At::entry:
                return begin_field(k);
            case At::metadata:
                metadata_key_ = std::move(k);
                return go(At::metadata_text);
            default:
                return unexpected("a key");
        }
    }

    bool text(std::string& v) override {
        if (at_ == At::metadata_text) {
            if (!header.metadata.emplace(metadata_key_, std::move(v)).second)
                return stop(fmt::format("__metadata__: duplicate key {}", show_name(metadata_key_)));
            return go(At::metadata);
        }
        if (at_ != At::dtype) return unexpected("a string");
        const auto dtype = dtype_from_name(v);
        if (!dtype) return stop(fmt::format("{}: unknown dtype {}", tensor(), show_name(v)));
        entry_.dtype = *dtype;
        return go(At::entry);
    }

    bool whole_number(uint64_t v) override {
        if (at_ == At::shape_items) {
            if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
                return stop(fmt::format("{}: dimension {} is beyond 63 bits", tensor(), v));
            entry_.shape.push_back(static_cast<int64_t>(v));
            return true;
        }
        if (at_ != At::offset_items) return unexpected("a number");
        if (offsets_ == 2) return stop(fmt::format("{}: data_offsets has more than two numbers", tensor()));
        (offsets_++ == 0 ? entry_.begin : entry_.end) = v;
        return true;
    }

    bool unexpected(std::string_view what) override {
        const auto in_tensor = [&](std::string_view wanted) {
            return stop(fmt::format("{}: {}, found {}", tensor(), wanted, what));
        };
        switch (at_) {
            case At::start:
                return stop("the header is not a JSON object");
            case At::metadata_value:
                return stop(fmt::format("__metadata__ must be an object, found {}", what));
            case At::metadata_text:
                return stop(fmt::format("__metadata__: {} must be a string, found {}", show_name(metadata_key_), what));
            case At::entry_value:
                return in_tensor("must be an object");
            case At::dtype:
                return in_tensor("dtype must be a string");
            case At::shape:
                return in_tensor("shape must be an array");
            case At::shape_items:
                return in_tensor("shape must hold whole numbers");
            case At::offsets:
                return in_tensor("data_offsets must be an array");
            case At::offset_items:
                return in_tensor("data_offsets must hold whole numbers");
            default:
                return stop(fmt::format("unexpected {}", what));
        }
    }

private:
    // Position in the header of the next event.
    enum class At {
        start,
        names,  // inside the outer object
        metadata_value,
        metadata,
        metadata_text,
        entry_value,
        entry,  // inside a tensor's object
        dtype,
        shape,
        shape_items,
        offsets,
        offset_items,
        end,
    };
    enum Field : unsigned { dtype_field = 1, shape_field = 2, offsets_field = 4, all_fields = 7 };

    bool go(At at) {
        at_ = at;
        return true;
    }

    std::string tensor() const { return "tensor " + show_name(entry_.name); }

    bool begin_value(std::string& k) {
        if (k == safetensors_metadata_key) {
            if (seen_metadata_) return stop("duplicate key '__metadata__'");
            seen_metadata_ = true;
            return go(At::metadata_value);
        }
        entry_ = SafetensorsEntry{.name = std::move(k)};
        fields_ = 0;
        offsets_ = 0;
        return go(At::entry_value);
    }

    bool begin_field(const std::string& k) {
        if (k == "dtype") return once(dtype_field, k) && go(At::dtype);
        if (k == "shape") return once(shape_field, k) && go(At::shape);
        if (k == "data_offsets") return once(offsets_field, k) && go(At::offsets);
        return stop(fmt::format("{}: unknown key {}", tensor(), show_name(k)));
    }

    bool once(Field field, std::string_view k) {
        if (fields_ & field) return stop(fmt::format("{}: duplicate key '{}'", tensor(), k));
        fields_ |= field;
        return true;
    }

    bool finish_entry() {
        if (fields_ != all_fields) {
            const std::string_view missing = !(fields_ & dtype_field)   ? "dtype"
                                             : !(fields_ & shape_field) ? "shape"
                                                                        : "data_offsets";
            return stop(fmt::format("{}: has no {}", tensor(), missing));
        }
        const auto elements = checked_elements(entry_.shape);
        const auto bytes = elements ? checked_mul<int64_t>(*elements, dtype_bytes(entry_.dtype)) : std::nullopt;
        const std::string_view dtype = dtype_name(entry_.dtype);
        if (!bytes) return stop(fmt::format("{}: size of {} {} overflows", tensor(), dtype, shape_text(entry_.shape)));
        if (entry_.end < entry_.begin || entry_.end - entry_.begin != static_cast<uint64_t>(*bytes))
            return stop(fmt::format("{}: {} {} needs {} bytes, data_offsets are [{}, {}]", tensor(), dtype,
                                    shape_text(entry_.shape), *bytes, entry_.begin, entry_.end));
        header.entries.push_back(std::move(entry_));
        return true;
    }

    At at_ = At::start;
    SafetensorsEntry entry_;
    unsigned fields_ = 0;  // set of Field
    int offsets_ = 0;      // numbers read of data_offsets
    bool seen_metadata_ = false;
    std::string metadata_key_;
};

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json) {
    HeaderReader reader;
    NIBBLE_CHECK(read_json_events(json, reader));
    return std::move(reader.header);
}

}  // namespace nibble
