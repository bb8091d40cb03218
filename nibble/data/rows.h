// Rows of training data as other programs write them, in one form.
#pragma once

#include "base/json.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

struct DataRow {
    // A text, where there are no messages. The loss counts what follows `prompt`, which may be empty.
    std::string prompt, text;
    // Or a conversation: objects with 'role' and 'content' (and what else templates read), and its tools.
    Json messages, tools;
    std::vector<bool> unlearned;  // by message: the row says that the loss does not count it
    bool is_chat() const { return messages.is_array(); }
};

// Keys that are known, the first that applies; other keys of the row are not looked at:
//   messages, conversations, conversation   a list of {role, content} (OpenAI) or {from, value} (ShareGPT), with tools;
//                                           a message with "weight": 0 is not learned
//   prompt, completion                      texts (TRL): the loss counts the completion; or lists of messages
//   instruction, input or context, output or response   Alpaca, Dolly; with system and history
//   question or query or prompt or input,   a question and its answer
//     answer or response or output
//   text, content                           a text
// Errors: none of them, a value of a wrong type, a role that is unknown, rows of preferences (chosen, rejected).
Result<DataRow> data_row(const Json& row);

// Whether a row with these keys is one of them.
bool is_known_row(std::span<const std::string> keys);
// All keys that data_row() reads: what is asked for of files with columns.
std::span<const std::string_view> data_row_keys();

}  // namespace nibble
