#include "engine/answer_constraint.h"

namespace nibble {
namespace {

class HeldAnswer : public TokenConstraint {
public:
    explicit HeldAnswer(AnswerConstraint constraint) : constraint_(std::move(constraint)) {}
    std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<HeldAnswer>(*this); }
    void mask(std::span<uint32_t> allowed) override { constraint_.mask(allowed); }
    bool accept(int32_t token) override { return constraint_.accept(token); }
    bool may_end() const override { return constraint_.may_end(); }
    bool finished() const override { return constraint_.finished(); }

private:
    AnswerConstraint constraint_;
};

}  // namespace

std::shared_ptr<const TokenConstraint> token_constraint(AnswerConstraint constraint) {
    return std::make_shared<const HeldAnswer>(std::move(constraint));
}

}  // namespace nibble
