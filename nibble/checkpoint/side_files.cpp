#include "checkpoint/side_files.h"

#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int max_depth = 32;

bool is_weight_file(std::string_view name) {
    constexpr std::array<std::string_view, 14> endings{".safetensors", ".safetensors.index.json",
                                                       ".bin",         ".bin.index.json",
                                                       ".pt",          ".pth",
                                                       ".ckpt",        ".gguf",
                                                       ".h5",          ".msgpack",
                                                       ".onnx",        ".nemo",
                                                       ".npz",         ".tflite"};
    return std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); });
}

bool describes_this_checkpoint(std::string_view name) {
    return name == "config.json" || name == "params.json" || name == "hf_quant_config.json" || name == "nibble.json" ||
           name == "nibble-report.json" || name == "nibble-report.html";
}

Status collect(const fs::path& root, const fs::path& folder, int depth, std::vector<Checkpoint::SideFile>& out) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        const std::string shown = it->path().lexically_relative(root).string();
        std::error_code failed;
        if (name.starts_with('.') || is_weight_file(name) || (depth == 0 && describes_this_checkpoint(name))) continue;
        const bool link = it->is_symlink(failed);
        if (it->is_directory(failed)) {
            if (link) return fail("{}: {}: a link to a folder is not followed", root.string(), show_name(shown));
            if (depth == max_depth)
                return fail("{}: {}: folders are nested deeper than {}", root.string(), show_name(shown), max_depth);
            NIBBLE_CHECK(collect(root, it->path(), depth + 1, out));
            continue;
        }
        const fs::path target = fs::canonical(it->path(), failed);
        if (failed) return fail("{}: {}: {}", root.string(), show_name(shown), failed.message());
        if (!fs::is_regular_file(target, failed))
            return fail("{}: {}: is not a regular file; remove it", root.string(), show_name(shown));
        out.push_back({shown, target, {}});
    }
    if (error) return fail("{}: cannot list: {}", folder.string(), error.message());
    return Ok{};
}

}  // namespace

Result<std::vector<Checkpoint::SideFile>> list_side_files(const fs::path& folder) {
    std::error_code error;
    const fs::path root = fs::canonical(folder, error);
    if (error) return fail("{}: {}", folder.string(), error.message());
    std::vector<Checkpoint::SideFile> files;
    NIBBLE_CHECK(collect(root, root, 0, files));
    std::ranges::sort(files, {}, &Checkpoint::SideFile::name);
    return files;
}

std::string outside_links_note(const fs::path& folder, std::span<const Checkpoint::SideFile> files) {
    std::error_code error;
    const fs::path root = fs::canonical(folder, error);
    if (error) return {};
    const auto inside = [](const fs::path& file, const fs::path& place) {
        const fs::path relative = file.lexically_relative(place);
        return !relative.empty() && *relative.begin() != "..";
    };
    const bool cached = root.parent_path().filename() == "snapshots";
    const fs::path blobs = root.parent_path().parent_path() / "blobs";
    int64_t count = 0;
    std::string first;
    for (const Checkpoint::SideFile& file : files) {
        if (file.copy_from.empty() || inside(file.copy_from, root)) continue;
        if (cached && inside(file.copy_from, blobs)) continue;
        if (count++ == 0) first = fmt::format("{} is {}", show_name(file.name), show_name(file.copy_from.string()));
    }
    if (count == 0) return {};
    return fmt::format("{} {} to files outside of the folder ({}{}); the output holds copies of them", count,
                       count == 1 ? "file is a link" : "files are links", count > 1 ? "the first: " : "", first);
}

bool is_inside_name(std::string_view name) {
    const fs::path path(name);
    if (name.empty() || path.is_absolute() || path.lexically_normal() != path || path.filename().empty()) return false;
    return std::ranges::none_of(path, [](const fs::path& part) { return part == ".." || part == "."; });
}

}  // namespace nibble
