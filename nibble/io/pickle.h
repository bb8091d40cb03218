// Reads Python's pickles as data. Known are the opcodes for dictionaries, lists, tuples, numbers and strings. Classes
// and functions are names: they must be in a list of permitted ones, and a call stays a pair of name and arguments. No
// code is run and nothing is imported. Every other opcode is an error.
//
// Source of the opcodes: Python's Lib/pickletools.py.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

struct PickleNode {
    enum class Kind : uint8_t {
        none,
        boolean,  // integer: 0 or 1
        integer,
        number,  // a floating-point number, whose value is not kept
        text,
        global,      // text: "torch._utils._rebuild_tensor_v2"
        list,        // items
        tuple,       // items
        dictionary,  // items: key, value, key, value ...
        call,        // items: callable, tuple of arguments
        persistent,  // items: the identifier of something outside the pickle
    } kind = Kind::none;
    int64_t integer = 0;
    std::string_view text;
    std::vector<int32_t> items;  // indices of nodes
};

struct Pickle {
    std::vector<PickleNode> nodes;
    int32_t root = 0;

    const PickleNode& at(int32_t index) const { return nodes[static_cast<size_t>(index)]; }
};

// Parses a pickle. Texts refer to `bytes`; a call of "collections.OrderedDict" without arguments is a dictionary, and
// its attributes are ignored. `globals`: the permitted names. Errors: an unknown opcode or name, a damaged pickle.
Result<Pickle> parse_pickle(Bytes bytes, std::span<const std::string_view> globals);

}  // namespace nibble
