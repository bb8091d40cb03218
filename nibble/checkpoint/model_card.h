// README.md of a folder that nibble writes: the metadata for the Hugging Face Hub (a YAML block between lines of ---),
// a description of the job, and the text of the source's card. The same inputs give the same bytes, because dates and
// host names are left out.
//
// Metadata of the source's card (license, language ...) is copied except what is no longer true for the new files:
// library_name, base_model, evaluation results. The source's tags come before the new tags.
#pragma once

#include "checkpoint/export.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

inline constexpr std::string_view model_card_name = "README.md";

struct ModelCard {
    std::string title;       // title of the page
    std::string base_model;  // "org/name" of the Hub, or a name; empty: trained from scratch
    std::string relation;    // the Hub's base_model_relation: "quantized", "finetune"; empty: left out
    // If the source is quantized as well and its card has a base_model, use this base_model.
    bool keeps_base = false;
    std::string library;  // the Hub's library_name
    std::vector<std::string> tags;
    std::vector<std::pair<std::string, std::string>> facts;  // rows of the table: ("recipe", "nvfp4: ...")
    std::string command;                                     // shown as a code block
    std::string text;                                        // Markdown after the table
};

// Returns the Hub's name of a checkpoint: "org/name" for a folder of the hub cache (models--org--name/snapshots/...),
// else the last part of the path.
std::string hub_name(const std::filesystem::path& checkpoint);

// Returns the Hub's name of the library that reads a dialect.
std::string_view card_library(Dialect dialect);

// Adds what follows from the tensors: the library, tags, a table row of formats, and, if the model is or was quantized,
// the relation unless it is set.
void note_formats(ModelCard& card, const Checkpoint& source, const ExportSpec& spec);

// Returns the text of the card. source: the text of the source's README.md; may be empty.
std::string model_card_text(const ModelCard& card, std::string_view source);

// Removes README.md from the side files and returns its text; empty: there is none. A file of more than 1 MiB is
// renamed to README.source.md instead. Error: the file cannot be read.
Result<std::string> take_model_card(std::vector<Checkpoint::SideFile>& files);

}  // namespace nibble
