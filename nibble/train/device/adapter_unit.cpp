#include "train/device/adapter_unit.h"

namespace nibble {

Result<AdapterUnit> AdapterUnit::of(const FlatUnit& unit, int64_t rank, const Parameters& adapters,
                                    const FlatLayout& flat) {
    AdapterUnit u{.blocks = {.experts = unit.experts, .rank = rank}};
    cuda::AdapterBlocks& blocks = u.blocks;
    for (const Linear* part : unit.of_expert()) {
        const auto a = adapters.id(part->name + ".lora_A.weight"), b = adapters.id(part->name + ".lora_B.weight");
        if (a.ok() && b.ok()) {
            if (blocks.parts == cuda::AdapterBlocks::most_parts)
                return fail("more than {} linears with the inputs of {} have adapters", blocks.parts, part->name);
            if (u.none()) u.a = flat.at[*a], u.b = flat.at[*b];
            blocks.part[blocks.parts++] = {blocks.rows, part->rows};
        }
        blocks.rows += part->rows;
    }
    return u;
}

}  // namespace nibble
