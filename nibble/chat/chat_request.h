// Checks and normalizes the messages and tools of a request before a template reads them.
#pragma once

#include "base/json.h"

namespace nibble {

// Returns the messages as templates expect them: content as one text (parts joined by line ends); arguments of calls as
// objects (a text that is not an object stays a text); calls of custom tools as calls of functions; developer as system
// unless the template knows it; function_call and messages of `function` as calls and results of tools. An assistant's
// content that is null or absent becomes empty, and so does an empty list of its calls, because clients send back what
// they received. Errors name the place: "messages[3].content[0]: ...".
Result<Json> checked_messages(const Json& messages, bool keep_developer);
// For templates that iterate over the members of arguments: replaces a text TEXT by {"arguments": TEXT}. Returns
// whether there was one.
bool wrap_text_arguments(Json& messages);
// Checks that the value is null or a list of functions. Errors name the place: "tools[0].function.name: ...".
Status check_tools(const Json& tools);

}  // namespace nibble
