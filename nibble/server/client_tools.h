// Tools of /v1/responses and /v1/chat/completions. In the prompt every tool is a function with a unique name. The
// answer describes a call as the client declared the tool: a function in a namespace, or a custom tool, whose input is
// a text.
//
//   /v1/responses                                                                                 in the prompt
//   {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", ...}]}  files__read, as in
//                                                                                                 vLLM
//   {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", ...}}     patch({"input":
//                                                                                                 TEXT})
//   {"type": "web_search"}                                                                        left out
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
    bool custom = false;  // a custom tool, whose input is a text

    // Adds the members that name the called tool to the client.
    void name_in(Json& item) const;
};

class ClientTools {
public:
    // Reads the tools of /v1/responses. Errors name the place in the list: "[1].name is missing".
    static Result<ClientTools> read(const Json& list);
    // Reads the tools of /v1/chat/completions. Functions are checked elsewhere (check_tools).
    static Result<ClientTools> read_chat(const Json& list);

    const Json& functions() const { return functions_; }         // for the chat template
    const InputGrammars& grammars() const { return grammars_; }  // grammars of custom tools, by the prompt's name
    const std::set<std::string>& left_out() const { return left_out_; }  // types of tools that a provider would run
    // Returns the tool by the name that the model wrote; an unknown name is returned unchanged.
    ClientTool called(const std::string& name) const;
    // Returns the prompt's name for {"type", "name"} in a tool_choice; empty: there is no such tool.
    std::string prompt_name(const Json& choice) const;
    // Returns the prompt's name for an item of the conversation, whose tool need not be in the list.
    static std::string prompt_name(const std::string& space, const std::string& name);
    // Returns the prompt's names for an entry of allowed_tools: a function, a custom tool, or all tools of a namespace.
    std::vector<std::string> prompt_names(const Json& allowed) const;

private:
    Status add(const Json& tool, const std::string& space);
    Status add_custom(const Json& tool, const ClientTool& named);

    Json functions_ = Json::array();
    InputGrammars grammars_;
    std::map<std::string, ClientTool, std::less<>> by_name_;
    std::set<std::string> left_out_;
};

// Returns true if the type is a tool of OpenAI that the provider, not the client, runs.
bool is_hosted_tool(std::string_view type);

}  // namespace nibble
