#include "cli/constraint_flags.h"

namespace nibble {

void add_constraint_flags(CLI::App& command, AnswerForm& form) {
    CLI::Option* const options[]{
        command.add_option("--json-schema", form.json_schema, "answers must match the JSON schema in this file"),
        command.add_flag("--json-object", form.json_object, "answers must be JSON objects"),
        command.add_option("--regex", form.regex, "the whole answer must match this regular expression"),
        command
            .add_option("--choice", form.choices,
                        "the answer must be this text, or, if given several times, one of these")
            ->allow_extra_args(false),
        command.add_option("--grammar", form.grammar, "answers must match the grammar in this file (GBNF or Lark)")};
    for (CLI::Option* one : options)
        for (CLI::Option* other : options)
            if (one != other) one->excludes(other);
}

}  // namespace nibble
