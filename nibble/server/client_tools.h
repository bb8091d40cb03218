// Tools of /v1/responses and /v1/chat/completions. In the prompt every tool is a function with a name of its own. The
// answer describes a call as the client declared its tool: a function of a namespace, or a custom tool, which takes a
// text.
//
//   /v1/responses                                                                                  in the prompt
//   {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", ...}]}   files__read, as vLLM
//   {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", ...}}      patch({"input":
//   TEXT})
//   {"type": "web_search"}                                                                         left out
//   /v1/chat/completions
//   {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {"syntax": "lark", ...}}}}
#pragma once

#include "chat/chat_format.h"

#include <map>
#include <set>
#include <string>

namespace nibble {

struct ClientTool {
    std::string name;
    std::string space;    // its namespace; empty: none
    bool custom = false;  // takes a text

    // The members that tell the client which tool is called.
    void name_in(Json& item) const;
};

class ClientTools {
public:
    // Errors name the place in the list: "[1].name is missing".
    static Result<ClientTools> read(const Json& list);
    // Reads the tools of /v1/chat/completions. Its functions are not checked here (check_tools).
    static Result<ClientTools> read_chat(const Json& list);

    const Json& functions() const { return functions_; }                 // of the chat template
    const InputGrammars& grammars() const { return grammars_; }          // of custom tools, by the prompt's name
    const std::set<std::string>& left_out() const { return left_out_; }  // types of tools that a provider runs
    // By the name that the model wrote; one that no tool has stays as it is.
    ClientTool called(const std::string& name) const;
    // The prompt's name of {"type", "name"} in a tool_choice; empty: there is none.
    std::string prompt_name(const Json& choice) const;
    // Of an item of the conversation, whose tool need not be in the list.
    static std::string prompt_name(const std::string& space, const std::string& name);
    // The prompt's names of an entry of allowed_tools: a function, a custom tool, or all of a namespace.
    std::vector<std::string> prompt_names(const Json& allowed) const;

private:
    Status add(const Json& tool, const std::string& space);
    Status add_custom(const Json& tool, const ClientTool& named);

    Json functions_ = Json::array();
    InputGrammars grammars_;
    std::map<std::string, ClientTool, std::less<>> by_name_;
    std::set<std::string> left_out_;
};

// Whether a type is one of OpenAI's tools that run elsewhere than in the client's functions.
bool is_hosted_tool(std::string_view type);

}  // namespace nibble
