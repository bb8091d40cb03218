// Adapts a constraint of chat/constraint.h to the engine's interface.
#pragma once

#include "chat/constraint.h"
#include "engine/request.h"

#include <memory>

namespace nibble {

std::shared_ptr<const TokenConstraint> token_constraint(AnswerConstraint constraint);

}  // namespace nibble
