// A small model, texts and an output folder for jobs that are called as a library.
#pragma once

#include "nibble/quantize.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace nibble::test {

// Hooks that record what a job reports. With `stop_in`, the first progress of that phase requests a stop.
struct Heard {
    std::vector<std::string> phases, warnings, notes;
    std::string stop_in;
    std::atomic<bool> stop{false};

    JobHooks hooks() {
        return {.progress =
                    [this](const Progress& p) {
                        if (phases.empty() || phases.back() != p.phase) phases.emplace_back(p.phase);
                        if (!stop_in.empty() && p.phase.find(stop_in) != p.phase.npos) stop = true;
                    },
                .warn = [this](std::string_view line) { warnings.emplace_back(line); },
                .stop_requested = &stop,
                .note = [this](std::string_view line) { notes.emplace_back(line); }};
    }
};

struct Bed {
    TempDir dir;
    std::string model = test_data("chat").string();
    std::string text = (dir / "text.txt").string();

    Bed() {
        std::string lines;
        for (int i = 1; i <= 40; ++i)
            lines += "Line " + std::to_string(i) + " says hello to the world, and the world says hello to it.\n";
        write_file(text, lines);
    }

    std::string at(std::string_view name) const { return (dir / name).string(); }

    QuantizeOptions weights(std::string_view out) const {
        return {.source = model, .out = at(out), .recipe = "w4a16_nvfp4", .threads = 1};
    }
    QuantizeOptions calibrated(std::string_view out) const {
        return {.source = model,
                .out = at(out),
                .recipe = "nvfp4",
                .calib = {.file = text, .tokens = 512, .sequence = 64},
                .threads = 1};
    }
};

// Returns every file of a checkpoint except the reports, which contain times. README.md begins with the folder's name,
// which is left out.
inline std::string content_of(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (const std::string name = entry.path().filename(); !name.starts_with("nibble-report")) names.push_back(name);
    std::ranges::sort(names);
    std::string content;
    for (const std::string& name : names) {
        std::string bytes = read_file(folder / name);
        const std::string title = "# " + folder.filename().string() + "\n";
        if (const size_t at = bytes.find(title); name == "README.md" && at != bytes.npos) bytes.erase(at, title.size());
        content += name + "\n" + sha256(bytes) + "\n";
    }
    return content;
}

}  // namespace nibble::test
