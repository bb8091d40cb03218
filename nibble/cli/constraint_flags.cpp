#include "cli/constraint_flags.h"

#include "base/mapped_file.h"

namespace nibble {

void add_constraint_flags(CLI::App& command, ConstraintFlags& flags) {
    CLI::Option* const options[]{
        command.add_option("--json-schema", flags.json_schema, "answers are JSON of the schema in this file"),
        command.add_flag("--json-object", flags.json_object, "answers are JSON objects"),
        command.add_option("--regex", flags.regex, "answers match this regular expression as a whole"),
        command.add_option("--choice", flags.choices, "answers are this text; given several times: one of these texts")
            ->allow_extra_args(false),
        command.add_option("--grammar", flags.grammar, "answers are of the grammar in this file: GBNF or Lark")};
    for (CLI::Option* one : options)
        for (CLI::Option* other : options)
            if (one != other) one->excludes(other);
}

Result<std::shared_ptr<const Grammar>> constraint_grammar(const ConstraintFlags& flags) {
    if (!flags.json_schema.empty()) {
        NIBBLE_TRY(const Json schema, read_json_file(flags.json_schema));
        return Grammar::from_json_schema(schema, answer_schema).within(flags.json_schema);
    }
    if (flags.json_object) return Grammar::json_object();
    if (!flags.regex.empty()) return Grammar::from_regex(flags.regex).within("--regex");
    if (!flags.choices.empty()) return Grammar::from_choices(flags.choices).within("--choice");
    if (!flags.grammar.empty()) {
        NIBBLE_TRY(const std::string text, read_text_file(flags.grammar));
        return Grammar::from_ebnf(text).within(flags.grammar);
    }
    return std::shared_ptr<const Grammar>();
}

}  // namespace nibble
