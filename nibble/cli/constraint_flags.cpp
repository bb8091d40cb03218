#include "cli/constraint_flags.h"

namespace nibble {

void add_constraint_flags(CLI::App& command, AnswerForm& form) {
    CLI::Option* const options[]{
        command.add_option("--json-schema", form.json_schema, "answers are JSON of the schema in this file"),
        command.add_flag("--json-object", form.json_object, "answers are JSON objects"),
        command.add_option("--regex", form.regex, "answers match this regular expression as a whole"),
        command.add_option("--choice", form.choices, "answers are this text; given several times: one of these texts")
            ->allow_extra_args(false),
        command.add_option("--grammar", form.grammar, "answers are of the grammar in this file: GBNF or Lark")};
    for (CLI::Option* one : options)
        for (CLI::Option* other : options)
            if (one != other) one->excludes(other);
}

}  // namespace nibble
