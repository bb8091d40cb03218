// gpu_engine: checks the kernels of a forward pass, then times those that `nibble bench` does not.
#include "device/program.h"
#include "engine/check.h"
#include "engine/timing.h"

#include <algorithm>
#include <array>

namespace nibble::bench {
namespace {

using Checks = Result<std::vector<Check>>;

struct Group {
    std::string_view name;
    Checks (*check)(Kit&, bool small);
};
constexpr std::array groups{
    Group{"elementwise", [](Kit& kit, bool) { return check_elementwise(kit); }},
    Group{"inputs", [](Kit& kit, bool) { return check_inputs(kit); }},
    Group{"inputs", [](Kit& kit, bool) { return check_code_rows(kit); }},
    Group{"products", [](Kit& kit, bool small) { return check_products(kit, small); }},
    Group{"grouped", [](Kit& kit, bool small) { return check_grouped(kit, small); }},
    Group{"chains", [](Kit& kit, bool) { return check_chains(kit); }},
    Group{"expert_codes", [](Kit& kit, bool small) { return check_expert_codes(kit, small); }},
    Group{"experts", [](Kit& kit, bool) { return check_experts(kit); }},
    Group{"mamba", [](Kit& kit, bool) { return check_mamba(kit); }},
    Group{"observers", [](Kit& kit, bool) { return check_observers(kit); }},
    Group{"sampling", [](Kit& kit, bool) { return check_sampling(kit); }},
    Group{"scaled_mm", [](Kit& kit, bool) { return check_scaled_mm(kit); }},
};

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    using namespace nibble::bench;
    ProgramOptions options;
    std::vector<std::string> names, only;
    for (const Group& group : groups)
        if (names.empty() || names.back() != group.name) names.emplace_back(group.name);
    CLI::App app{"Checks the kernels of a forward pass, then times them"};
    options.add_to(app, "few tokens only");
    app.add_option("--only", only, "these checks")->check(CLI::IsMember(names));
    CLI11_PARSE(app, argc, argv);
    const auto wanted = [&](std::string_view name) { return only.empty() || std::ranges::count(only, name) > 0; };
    return run_program(
        "gpu_engine", options,
        [&](Run& run) {
            for (const Group& group : groups)
                if (wanted(group.name)) run.show(group.name, group.check(run.kit, options.small));
        },
        [&](Run& run) { return wanted("chains") ? time_chains(run.kit, run.report) : nibble::Status(nibble::Ok{}); });
}
