// Converts rows of training data in common formats to one form.
#pragma once

#include "base/json.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

struct DataRow {
    // A text, if there are no messages. The text after `prompt` (which may be empty) is learned.
    std::string prompt, text;
    // A conversation: objects with 'role' and 'content' (and other keys of templates), and its tools.
    Json messages, tools;
    std::vector<bool> unlearned;  // by message: the row excludes it from the loss
    bool is_chat() const { return messages.is_array(); }
};

// Recognized keys, in this order; other keys are ignored:
//   messages, conversations, conversation   a list of {role, content} (OpenAI) or {from, value} (ShareGPT), with tools;
//                                           a message with "weight": 0 is not learned
//   prompt, completion                      texts (TRL), of which the completion is learned; or lists of messages
//   instruction, input or context, output or response   Alpaca, Dolly; with system and history
//   question or query or prompt or input,   a question and its answer
//     answer or response or output
//   text, content                           a text
// Errors: no recognized key; a value of a wrong type; an unknown role; rows of preferences (chosen, rejected).
Result<DataRow> data_row(const Json& row);

// Returns true if a row with these keys is recognized.
bool is_known_row(std::span<const std::string> keys);
// Returns all keys that data_row() reads, to select columns of files.
std::span<const std::string_view> data_row_keys();

}  // namespace nibble
