#include "io/torch_file.h"

#include "base/checked.h"
#include "io/json_events.h"
#include "io/pickle.h"
#include "io/zip.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace nibble {
namespace {

using Kind = PickleNode::Kind;

constexpr std::string_view tensor_v2 = "torch._utils._rebuild_tensor_v2", tensor_v3 = "torch._utils._rebuild_tensor_v3",
                           parameter = "torch._utils._rebuild_parameter", untyped = "torch.storage.UntypedStorage";

struct StorageType {
    std::string_view name;
    DType dtype;
};
constexpr std::array storage_types{
    StorageType{"torch.FloatStorage", DType::f32},     StorageType{"torch.HalfStorage", DType::f16},
    StorageType{"torch.BFloat16Storage", DType::bf16}, StorageType{"torch.DoubleStorage", DType::f64},
    StorageType{"torch.LongStorage", DType::i64},      StorageType{"torch.IntStorage", DType::i32},
    StorageType{"torch.ShortStorage", DType::i16},     StorageType{"torch.CharStorage", DType::i8},
    StorageType{"torch.ByteStorage", DType::u8},       StorageType{"torch.BoolStorage", DType::boolean}};

constexpr std::array<std::string_view, 19> globals{"collections.OrderedDict",
                                                   tensor_v2,
                                                   tensor_v3,
                                                   parameter,
                                                   untyped,
                                                   "torch.FloatStorage",
                                                   "torch.HalfStorage",
                                                   "torch.BFloat16Storage",
                                                   "torch.DoubleStorage",
                                                   "torch.LongStorage",
                                                   "torch.IntStorage",
                                                   "torch.ShortStorage",
                                                   "torch.CharStorage",
                                                   "torch.ByteStorage",
                                                   "torch.BoolStorage",
                                                   "torch.float8_e4m3fn",
                                                   "torch.float8_e5m2",
                                                   "torch.float8_e8m0fnu",
                                                   "torch.uint16"};

std::optional<DType> dtype_of_global(std::string_view name) {
    const auto typed = std::ranges::find(storage_types, name, &StorageType::name);
    if (typed != storage_types.end()) return typed->dtype;
    constexpr std::string_view torch = "torch.";
    return name.starts_with(torch) ? dtype_from_torch_name(name.substr(torch.size())) : std::nullopt;
}

class TensorDictionary {
public:
    TensorDictionary(const Pickle& pickle, const std::vector<ZipEntry>& files, std::string_view folder)
        : pickle_(pickle), folder_(folder) {
        for (const ZipEntry& file : files) files_.emplace(file.name, file.data);
    }

    Result<std::vector<TensorRecord>> read() const {
        const PickleNode& root = pickle_.at(pickle_.root);
        if (root.kind != Kind::dictionary) return fail("is not a dictionary of tensors");
        std::vector<TensorRecord> tensors;
        std::unordered_set<std::string_view> names;
        for (size_t i = 0; i < root.items.size(); i += 2) {
            const PickleNode& key = pickle_.at(root.items[i]);
            if (key.kind != Kind::text) return fail("has a key that is not a name");
            if (!names.insert(key.text).second) return fail("duplicate tensor name {}", show_name(key.text));
            NIBBLE_TRY(TensorRecord record,
                       tensor(root.items[i + 1]).within(fmt::format("tensor {}", show_name(key.text))));
            record.name = key.text;
            tensors.push_back(std::move(record));
        }
        return tensors;
    }

private:
    // Returns the arguments of a call; null: something else.
    const PickleNode* arguments(int32_t node, std::string_view& callable) const {
        const PickleNode& n = pickle_.at(node);
        if (n.kind != Kind::call) return nullptr;
        callable = pickle_.at(n.items[0]).text;
        return &pickle_.at(n.items[1]);
    }

    Result<std::vector<int64_t>> integers(int32_t node) const {
        const PickleNode& n = pickle_.at(node);
        std::vector<int64_t> out;
        for (const int32_t item : n.items) {
            const PickleNode& value = pickle_.at(item);
            if (value.kind != Kind::integer || value.integer < 0) return fail("a size or stride is not a number");
            out.push_back(value.integer);
        }
        if (n.kind != Kind::tuple) return fail("a size or stride is not a tuple");
        return out;
    }

    static bool contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
        if (shape.size() != strides.size()) return false;
        int64_t expected = 1;
        for (size_t i = shape.size(); i-- > 0;) {
            if (shape[i] != 1 && strides[i] != expected) return false;
            expected *= std::max<int64_t>(shape[i], 1);
        }
        return true;
    }

    Result<TensorRecord> tensor(int32_t node) const {
        std::string_view callable;
        const PickleNode* a = arguments(node, callable);
        if (a && callable == parameter && !a->items.empty()) a = arguments(a->items[0], callable);
        const bool v3 = callable == tensor_v3;
        if (!a || (callable != tensor_v2 && !v3) || a->items.size() < (v3 ? 7u : 6u))
            return fail("is not a tensor; only a dictionary of tensors is read");
        const PickleNode& offset = pickle_.at(a->items[1]);
        NIBBLE_TRY(const auto shape, integers(a->items[2]));
        NIBBLE_TRY(const auto strides, integers(a->items[3]));
        NIBBLE_TRY(Storage storage, storage_of(a->items[0]));
        if (v3) storage.dtype = dtype_of_global(pickle_.at(a->items[6]).text);
        const auto elements = checked_elements(shape);
        if (!storage.dtype || !elements || offset.kind != Kind::integer || offset.integer < 0)
            return fail("has an unknown dtype, or an invalid size or offset");
        if (*elements != 0 && !contiguous(shape, strides)) return fail("is not contiguous");
        const int64_t size = dtype_bytes(*storage.dtype);
        const auto begin = checked_mul(offset.integer, size), bytes = checked_mul(*elements, size);
        const auto end = begin && bytes ? checked_add(*begin, *bytes) : std::nullopt;
        if (!end || *end > std::ssize(storage.data)) return fail("is larger than its data");
        TensorRecord record{.name = {}, .dtype = *storage.dtype, .shape = shape, .data = {}};
        record.data = storage.data.subspan(static_cast<size_t>(*begin), static_cast<size_t>(*bytes));
        return record;
    }

    struct Storage {
        std::optional<DType> dtype;
        Bytes data;
    };

    // Reads ('storage', type, key, location, elements).
    Result<Storage> storage_of(int32_t node) const {
        const PickleNode& n = pickle_.at(node);
        const PickleNode* id = n.kind == Kind::persistent ? &pickle_.at(n.items[0]) : nullptr;
        if (!id || id->kind != Kind::tuple || id->items.size() < 5) return fail("has no storage");
        const PickleNode &type = pickle_.at(id->items[1]), &key = pickle_.at(id->items[2]);
        if (type.kind != Kind::global || key.kind != Kind::text) return fail("has no storage");
        const std::string name = fmt::format("{}data/{}", folder_, key.text);
        const auto file = files_.find(name);
        if (file == files_.end()) return fail("its data {} are missing", show_name(name));
        return Storage{dtype_of_global(type.text), file->second};
    }

    const Pickle& pickle_;
    std::unordered_map<std::string_view, Bytes> files_;
    std::string_view folder_;
};

}  // namespace

Result<TorchFile> TorchFile::parse(Bytes bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.starts_with("version https://git-lfs"))
        return fail("is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`");
    if (!text.starts_with("PK"))
        return fail(
            "is not a ZIP archive of torch.save(); files of PyTorch before 1.6 must be saved again as safetensors");
    NIBBLE_TRY(const auto files, list_zip(bytes));
    constexpr std::string_view pickle_name = "data.pkl";
    const ZipEntry* data = nullptr;
    std::string_view folder;
    for (const ZipEntry& file : files)
        if (file.name.ends_with(pickle_name) && std::ranges::count(file.name, '/') <= 1) {
            data = &file;
            folder = file.name.substr(0, file.name.size() - pickle_name.size());
        }
    if (!data) return fail("has no {}: no file of torch.save()", pickle_name);
    for (const ZipEntry& file : files)
        if (file.name == fmt::format("{}byteorder", folder) &&
            std::string_view(reinterpret_cast<const char*>(file.data.data()), file.data.size()) != "little")
            return fail("its numbers are not little-endian");
    NIBBLE_TRY(const Pickle pickle, parse_pickle(data->data, globals).within(show_name(data->name)));
    TorchFile file;
    NIBBLE_TRY(file.tensors_, TensorDictionary(pickle, files, folder).read());
    return file;
}

Result<TorchFile> TorchFile::open(const std::filesystem::path& path) {
    NIBBLE_TRY(auto map, MappedFile::open(path));
    NIBBLE_TRY(auto file, parse(map.bytes()).within(path.string()));
    file.map_ = std::move(map);
    return file;
}

}  // namespace nibble
