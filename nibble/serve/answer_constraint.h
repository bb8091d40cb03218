// What chat/constraint.h holds answers to, as the engine asks for it.
#pragma once

#include "chat/constraint.h"
#include "serve/request.h"

#include <memory>

namespace nibble {

std::shared_ptr<const TokenConstraint> token_constraint(AnswerConstraint constraint);

}  // namespace nibble
