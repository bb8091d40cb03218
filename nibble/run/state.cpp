#include "run/state.h"

#include "base/fields.h"
#include "base/map_faults.h"
#include "io/atomic_file.h"
#include "io/journal.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <system_error>
#include <tuple>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Version 1 (before commit 8d459c62) has no hash of the header.
constexpr int64_t run_state_version = 2, version_without_header_hash = 1;
constexpr std::string_view run_state_key = "nibble_run", header_hash_key = "nibble_header_hash";

struct StatePart {
    std::string name;
    std::vector<int64_t> shape;
    Bytes bytes;
    DType dtype = DType::f32;
};

std::vector<StatePart> parts_of_state(const RunState& s) {
    std::vector<StatePart> parts;
    for (size_t i = 0; i < s.names.size(); ++i) {
        const auto add = [&](std::string_view kind, Bytes bytes, DType dtype) {
            parts.push_back({fmt::format("{}.{}", kind, s.names[i]), s.shapes[i], bytes, dtype});
        };
        add("master", std::as_bytes(std::span(s.masters[i])), DType::f32);
        for (const auto& [kind, state] : {std::pair{"m", &s.m[i]}, std::pair{"v", &s.v[i]}})
            if (const Bytes bytes = bytes_of(*state); !bytes.empty()) add(kind, bytes, dtype_of(*state));
    }
    parts.push_back({"recipe", {std::ssize(s.recipe)}, std::as_bytes(std::span(s.recipe))});
    return parts;
}

// Hash of one tensor. A file's hash is the sum over tensors, so that their order does not matter.
uint64_t hash_of_tensor(std::string_view name, Bytes bytes) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(name.data(), name.size()));
}

// Returns the hash of a file's header, with the digits of the stored hash replaced by zeros. The key is found by text
// search: in any other JSON string its quotes would be escaped.
std::string hash_of_header(std::string header) {
    const std::string key = fmt::format("\"{}\":\"", header_hash_key);
    if (const size_t at = header.find(key); at != header.npos)
        for (size_t i = at + key.size(); i < header.size() && header[i] != '"'; ++i) header[i] = '0';
    return hash_text(header);
}

Result<SafetensorsLayout> layout_of(const std::vector<TensorSpec>& specs, const std::string& about) {
    SafetensorsLayout::Metadata metadata{{std::string(run_state_key), about},
                                         {std::string(header_hash_key), hash_text("")}};
    NIBBLE_TRY(const auto draft, SafetensorsLayout::make(specs, metadata));
    metadata[std::string(header_hash_key)] = hash_of_header(draft.header());
    return SafetensorsLayout::make(specs, metadata);
}

Status write_parts(const fs::path& file, const std::vector<StatePart>& parts, const std::string& about) {
    std::vector<TensorSpec> specs;
    for (const StatePart& part : parts) specs.push_back({part.name, part.dtype, part.shape});
    NIBBLE_TRY(auto layout, layout_of(specs, about));
    NIBBLE_TRY(auto writer, SafetensorsFileWriter::create(file, std::move(layout)));
    for (size_t i = 0; i < parts.size(); ++i) NIBBLE_CHECK(writer.write(i, 0, parts[i].bytes));
    return writer.finish();
}

struct StoredRun {
    RunPlace place;
    int64_t optimizer_steps = 0;
    std::string hash;
    std::vector<double> norms;
};

constexpr std::string_view older_one = "remove it to resume from an older one";

// Checks that the header (names, shapes, step counters and all other metadata) is as it was written.
Status check_header(const SafetensorsFile& file) {
    const auto stored = file.metadata().find(std::string(header_hash_key));
    if (stored == file.metadata().end()) return Ok{};  // stored_run() then accepts only version 1
    const Bytes whole = file.map()->bytes();
    const Bytes header = whole.first(whole.size() - static_cast<size_t>(file.data_bytes()));
    const std::string found = hash_of_header({reinterpret_cast<const char*>(header.data()), header.size()});
    if (found == stored->second) return Ok{};
    return fail("is damaged: the hash of its header is {} instead of {}; {}", found, stored->second, older_one);
}

Result<StoredRun> stored_run(const SafetensorsFile& file) {
    const auto found = file.metadata().find(std::string(run_state_key));
    if (found == file.metadata().end()) return fail("is not a checkpoint of a training run");
    NIBBLE_TRY(const Json json, parse_json(found->second));
    int64_t version = 0;
    StoredRun run;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("version", version));
    const bool hashed = file.metadata().contains(std::string(header_hash_key));
    const int64_t expected = hashed ? run_state_version : version_without_header_hash;
    if (version != expected)
        return fail("is damaged or of another version of nibble: 'version' {}, expected {}; {}", version, expected,
                    older_one);
    NIBBLE_CHECK(fields.need("step", run.place.step));
    NIBBLE_TRY(const Json* source, fields.object("source"));
    run.place.source = *source;
    NIBBLE_CHECK(fields.need("optimizer_steps", run.optimizer_steps));
    NIBBLE_CHECK(fields.need("identity", run.place.identity));
    NIBBLE_CHECK(fields.need("hash", run.hash));
    if (json.contains("norms")) NIBBLE_CHECK(fields.need("norms", run.norms));
    if (run.place.step < 0 || run.optimizer_steps < 0) return fail("the number of a step is negative");
    return run;
}

// Returns the checked values of a tensor.
Result<Bytes> state_tensor(const SafetensorsFile& file, const std::string& name, const std::vector<int64_t>& shape,
                           DType dtype = DType::f32) {
    const TensorRecord* record = file.find(name);
    if (!record) return fail("tensor '{}' is missing", name);
    if (record->dtype != dtype || record->shape != shape)
        return fail("tensor '{}' is not {} in this run's shape", name, dtype_name(dtype));
    const size_t size = dtype == DType::f32 ? 4 : 2;
    for (size_t i = 0; i < record->data.size() / size; ++i) {
        uint32_t bits = 0;  // a BF16 number is the upper half
        std::memcpy(reinterpret_cast<std::byte*>(&bits) + 4 - size, record->data.data() + i * size, size);
        const auto value = std::bit_cast<float>(bits);
        if (!std::isfinite(value)) return fail("tensor '{}': number {} is {}", name, i, value);
    }
    return record->data;
}

void copy_numbers(Bytes from, std::span<float> to) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size_bytes());
}

Status check_hash(const SafetensorsFile& file, const std::string& expected) {
    uint64_t hash = 0;
    for (const TensorRecord& record : file.tensors()) hash += hash_of_tensor(record.name, record.data);
    NIBBLE_CHECK(check_maps());
    if (const std::string found = fmt::format("{:016x}", hash); found != expected)
        return fail("is damaged: the hash of its tensors is {} instead of {}; {}", found, expected, older_one);
    return Ok{};
}

// `identity` null: accepts any run and ignores its recipe state.
Result<RunPlace> read_into(const SafetensorsFile& file, const RunIdentity* identity, std::string_view another_run,
                           TrainEngine& trainer) {
    NIBBLE_CHECK(check_header(file));
    NIBBLE_TRY(StoredRun run, stored_run(file));
    NIBBLE_CHECK(check_hash(file, run.hash));
    if (identity) {
        if (const std::string differs = identity_differences(*identity, run.place.identity); !differs.empty())
            return fail("belongs to another run: {}{}{}", differs, another_run.empty() ? "" : "; ", another_run);
    }
    const Parameters& parameters = trainer.parameters();
    size_t expected = 2 * parameters.count() + 1;
    for (size_t id = 0; id < parameters.count(); ++id) expected += trainer.state_layout(id).second;
    if (file.tensors().size() != expected)
        return fail("has {} tensors, but this model has {} parameters", file.tensors().size(), parameters.count());
    StoredTrainState stored{.optimizer_steps = run.optimizer_steps,
                            .norms = std::move(run.norms)};  // all values are checked before any is copied
    for (size_t id = 0; id < parameters.count(); ++id) {
        const auto& [name, shape] = std::tie(parameters.tensors()[id].name, parameters.tensors()[id].shape);
        const OptimizerLayout layout = trainer.state_layout(id);
        NIBBLE_TRY(stored.masters.emplace_back(), state_tensor(file, "master." + name, shape));
        NIBBLE_TRY(stored.m.emplace_back(), state_tensor(file, "m." + name, shape, layout.dtype));
        stored.v.emplace_back();
        if (layout.second) {
            NIBBLE_TRY(stored.v.back(), state_tensor(file, "v." + name, shape, layout.dtype));
        }
    }
    if (identity) {
        stored.recipe.resize(static_cast<size_t>(trainer.recipe_size()));
        NIBBLE_TRY(const Bytes of_recipe, state_tensor(file, "recipe", {std::ssize(stored.recipe)}));
        copy_numbers(of_recipe, stored.recipe);
    }  // empty otherwise: the trainer keeps its own
    NIBBLE_CHECK(check_maps());
    NIBBLE_CHECK(trainer.set_state(stored));
    return std::move(run.place);
}

}  // namespace

Result<RunState> copy_state(TrainEngine& trainer, RunPlace place) {
    NIBBLE_TRY(TrainState state, trainer.state());
    RunState s{.place = std::move(place),
               .optimizer_steps = state.optimizer_steps,
               .masters = std::move(state.masters),
               .m = std::move(state.m),
               .v = std::move(state.v),
               .recipe = std::move(state.recipe),
               .norms = std::move(state.norms)};
    for (const CheckpointTensor& tensor : trainer.parameters().tensors()) {
        s.names.push_back(tensor.name);
        s.shapes.push_back(tensor.shape);
    }
    return s;
}

std::string hash_of(const Parameters& parameters) {
    uint64_t hash = 0;
    for (size_t id = 0; id < parameters.count(); ++id)
        hash += hash_of_tensor(parameters.tensors()[id].name, std::as_bytes(parameters.master(id)));
    return fmt::format("{:016x}", hash);
}

Status write_state(const fs::path& file, const RunState& state) {
    const std::vector<StatePart> parts = parts_of_state(state);
    uint64_t hash = 0;
    for (const StatePart& part : parts) hash += hash_of_tensor(part.name, part.bytes);
    const Json about{{"version", run_state_version},
                     {"step", state.place.step},
                     {"source", state.place.source},
                     {"optimizer_steps", state.optimizer_steps},
                     {"identity", state.place.identity},
                     {"hash", fmt::format("{:016x}", hash)},
                     {"norms", state.norms}};
    fs::path partial = file;
    partial += ".partial";
    Status done = write_parts(partial, parts, about.dump());
    if (done.ok()) done = rename_durably(partial, file);
    if (!done.ok()) {
        std::error_code ignored;
        fs::remove(partial, ignored);
    }
    return done;
}

Result<RunPlace> read_state(const fs::path& file, const RunIdentity& identity, TrainEngine& trainer,
                            std::string_view another_run) {
    const auto opened = SafetensorsFile::open(file);
    if (!opened.ok()) return fail("{}; {}", opened.error().message(), older_one);
    const SafetensorsFile& stored = *opened;
    return read_into(stored, &identity, another_run, trainer).within(file.string());
}

Result<RunPlace> read_fork(const fs::path& file, TrainEngine& trainer) {
    NIBBLE_TRY(const auto stored, SafetensorsFile::open(file));
    return read_into(stored, nullptr, "", trainer).within(file.string());
}

}  // namespace nibble
