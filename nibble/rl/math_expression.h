// Mathematical expressions as people and models write them: plain text and LaTeX. An expression is compared with
// another by its value at fixed pseudo-random assignments of its letters, so 2(x+1) equals 2x+2 without algebra.
// Understood: decimals with thousands commas, fractions (a/b, \frac, \dfrac, \tfrac, mixed numbers such as
// 2\frac{1}{2}), percent, powers, roots (\sqrt, \sqrt[n], sqrt()), \pi, e, sin cos tan sec csc cot log (of a base, too)
// ln exp abs, products written without a sign, factorials, letters and \text{...} words as unknowns.
#pragma once

#include "base/error.h"

#include <complex>
#include <memory>
#include <string_view>
#include <vector>

namespace nibble {

class MathExpression {
public:
    // Error: not an expression, longer than 4,096 bytes, deeper than 64. Says where.
    static Result<MathExpression> parse(std::string_view text);

    // The value with every letter replaced by a number that depends on the letter and `point` alone. Not finite where
    // the expression has no value.
    std::complex<double> at(int point) const;
    bool has_letters() const;

    // Values at several points agree to 1e-9 of their size, or where one side is a decimal fraction to six places
    // behind the point, as math-verify has it.
    friend bool equal(const MathExpression& a, const MathExpression& b);

    struct Node;

private:
    explicit MathExpression(std::shared_ptr<const Node> root, bool decimal)
        : root_(std::move(root)), decimal_(decimal) {}

    std::shared_ptr<const Node> root_;
    bool decimal_ = false;
};

}  // namespace nibble
