// What a client may send as a conversation, checked before a template sees it.
#pragma once

#include "base/json.h"

namespace nibble {

// The messages as templates want them: content as one text (parts are joined by line ends), arguments of calls as
// objects, developer as system unless the template knows it. An assistant's content that is null or left out is empty,
// and so is an empty list of its calls: clients send back what they were told. Errors name the place:
// "messages[3].content[0]: ...".
Result<Json> checked_messages(const Json& messages, bool keep_developer);
// Null or a list of functions. Errors name the place: "tools[0].function.name: ...".
Status check_tools(const Json& tools);

}  // namespace nibble
