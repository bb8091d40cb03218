#include "quant/uniform_moments.h"

#include "base/fields.h"
#include "io/atomic_file.h"
#include "io/file_descriptor.h"

#include <fcntl.h>

#include <algorithm>
#include <set>

namespace nibble {
namespace {

constexpr std::string_view moments_name = "moments.bin", list_name = "moments.json";

}  // namespace

Status UniformMoments::put(const std::string& module, const Gram& gram, ThreadPool& pool) {
    const int64_t n = gram.size();
    const auto bytes = static_cast<size_t>(n * (n + 1) / 2) * sizeof(float);
    NIBBLE_TRY(auto upper, ScratchMemory::create(bytes, static_cast<size_t>(std::max<int64_t>(memory_, 0)), scratch_));
    if (!upper.spilled()) memory_ -= static_cast<int64_t>(bytes);
    auto* out = reinterpret_cast<float*>(upper.data());
    pool.parallel_for(n, [&](int64_t i) {
        float* row = out + i * n - i * (i + 1) / 2;  // row[j] is entry (i, j)
        for (int64_t j = i; j < n; ++j) row[j] = static_cast<float>(gram.sums()[static_cast<size_t>(i * n + j)]);
    });
    moments_.insert_or_assign(module, Moments{std::move(upper), gram.tokens()});
    return Ok{};
}

const UniformMoments::Moments* UniformMoments::find(const std::string& module) const {
    const auto owner = owner_.find(module);
    const auto found = moments_.find(owner == owner_.end() ? module : owner->second);
    return found == moments_.end() ? nullptr : &found->second;
}

int64_t UniformMoments::tokens(const std::string& module) const {
    const Moments* found = find(module);
    return found ? found->tokens : 0;
}

void UniformMoments::add_to(Gram& gram, const std::string& module, double factor, ThreadPool& pool) const {
    if (const Moments* found = find(module))
        gram.add_upper(reinterpret_cast<const float*>(found->upper.data()), factor, pool);
}

Status UniformMoments::save(const std::filesystem::path& folder) const {
    NIBBLE_TRY(auto file, FileDescriptor::open(folder / moments_name, O_RDWR | O_CREAT | O_TRUNC));
    Json list = Json::array(), owners = Json::object();
    int64_t at = 0;
    for (const auto& [module, moments] : moments_) {
        NIBBLE_CHECK(file.write_at(Bytes(moments.upper.data(), moments.upper.size()), at));
        list.push_back({module, moments.tokens, at, moments.upper.size()});
        at += static_cast<int64_t>(moments.upper.size());
    }
    for (const auto& [module, owner] : owner_) owners[module] = owner;
    NIBBLE_CHECK(file.close());
    return write_file_atomically(folder / list_name, Json{{"moments", list}, {"owners", owners}}.dump() + "\n");
}

Status UniformMoments::load(const std::filesystem::path& folder,
                            const std::function<bool(std::string_view module)>& wanted) {
    NIBBLE_TRY(const Json json, read_json_file(folder / list_name));
    NIBBLE_TRY(const auto file, FileDescriptor::open(folder / moments_name, O_RDONLY));
    const auto damaged = [&] { return fail(ErrorKind::file, "{}: is damaged", (folder / list_name).string()); };
    const auto list = json.find("moments"), owners = json.find("owners");
    if (list == json.end() || owners == json.end() || !list->is_array() || !owners->is_object()) return damaged();
    std::set<std::string, std::less<>> read;
    for (const auto& [module, owner] : owners->items()) {
        if (!owner.is_string()) return damaged();
        if (!wanted(module)) continue;
        owner_[module] = owner.get<std::string>();
        read.insert(owner_[module]);
    }
    for (const Json& item : *list) {
        int64_t tokens = 0, at = 0, bytes = 0;
        std::string module;
        if (!item.is_array() || item.size() != 4 || !json_value(item[0], module) || !json_value(item[1], tokens) ||
            !json_value(item[2], at) || !json_value(item[3], bytes) || bytes < 0)
            return damaged();
        if (!wanted(module) && !read.contains(module)) continue;
        NIBBLE_TRY(auto upper, ScratchMemory::create(static_cast<size_t>(bytes),
                                                     static_cast<size_t>(std::max<int64_t>(memory_, 0)), scratch_));
        if (!upper.spilled()) memory_ -= bytes;
        NIBBLE_CHECK(file.read_at({upper.data(), upper.size()}, at));
        moments_.insert_or_assign(module, Moments{std::move(upper), tokens});
    }
    return Ok{};
}

}  // namespace nibble
