#include "measure/subject.h"

#include <fmt/format.h>

namespace nibble {

Result<std::unique_ptr<Checkpoint>> BenchSubject::open(bool inputs, bool prediction) const {
    if (random.shape.empty()) return Checkpoint::open(path);
    RandomModel model = random;
    model.inputs = inputs, model.prediction = prediction;
    return random_checkpoint(model);
}

std::string BenchSubject::name() const {
    if (random.shape.empty()) return path;
    return fmt::format("{} in {}{}, random weights", random.shape, random.format, random.head ? ", its head too" : "");
}

}  // namespace nibble
