// README.md of a folder that nibble writes: the metadata that the Hugging Face Hub reads (a YAML head between lines of
// ---), what was done, and the text of the source's card below it. The same inputs give the same bytes: no date, no
// host.
//
// Of the source's head everything is carried over (license, language ...) but what is no longer true of the new files:
// library_name, base_model, evaluation results. Its tags come before the new ones.
#pragma once

#include "checkpoint/export.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

inline constexpr std::string_view model_card_name = "README.md";

struct ModelCard {
    std::string title;       // of the page
    std::string base_model;  // "org/name" of the Hub, or a bare name; empty: made from nothing
    std::string relation;    // the Hub's base_model_relation: "quantized", "finetune"; empty: not said
    // Where the source is quantized as well and its card has a base_model: that is this one's, too.
    bool keeps_base = false;
    std::string library;  // the Hub's library_name
    std::vector<std::string> tags;
    std::vector<std::pair<std::string, std::string>> facts;  // rows of the table: "recipe", "nvfp4: ..."
    std::string command;                                     // a block of its own
    std::string text;                                        // Markdown after the table
};

// What the Hub calls a checkpoint: "org/name" for a folder of the hub cache (models--org--name/snapshots/...), else the
// last part of the path.
std::string hub_name(const std::filesystem::path& checkpoint);

// The Hub's name of what reads a dialect.
std::string_view card_library(Dialect dialect);

// What follows from the tensors: the library, tags and a row for their formats; where they are quantized, or were, the
// relation, unless it is said.
void note_formats(ModelCard& card, const Checkpoint& source, const ExportSpec& spec);

// source: the text of the source's README.md; may be empty.
std::string model_card_text(const ModelCard& card, std::string_view source);

// Takes README.md out of the files that travel along; empty without one. A file of more than 1 MiB travels as
// README.source.md instead.
Result<std::string> take_model_card(std::vector<Checkpoint::SideFile>& files);

}  // namespace nibble
