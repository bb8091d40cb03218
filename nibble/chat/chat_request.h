// What a client may send as a conversation, checked before a template sees it.
#pragma once

#include "base/json.h"

namespace nibble {

// The messages as templates want them: content as one text (parts are joined by line ends), arguments of calls as
// objects (a text that says no object stays a text), calls of custom tools as calls of functions, developer as system
// unless the template knows it, function_call and messages of `function` as calls and results of tools. An assistant's
// content that is null or left out is empty, and so is an empty list of its calls: clients send back what they
// received. Errors name the place: "messages[3].content[0]: ...".
Result<Json> checked_messages(const Json& messages, bool keep_developer);
// For templates that walk over the members of arguments: a text TEXT becomes {"arguments": TEXT}. False: there is none.
bool wrap_text_arguments(Json& messages);
// Null or a list of functions. Errors name the place: "tools[0].function.name: ...".
Status check_tools(const Json& tools);

}  // namespace nibble
