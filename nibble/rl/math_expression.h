// Parses mathematical expressions in plain text and LaTeX. Two expressions are compared by their values at fixed
// pseudo-random assignments of their letters, so 2(x+1) equals 2x+2 without computer algebra. Supported: decimals with
// thousands commas, fractions (a/b, \frac, \dfrac, \tfrac, mixed numbers such as 2\frac{1}{2}), percent, powers, roots
// (\sqrt, \sqrt[n], sqrt()), \pi, e, sin cos tan sec csc cot log (with an optional base) ln exp abs, products without a
// sign, factorials, and letters and \text{...} words as unknowns.
#pragma once

#include "base/error.h"

#include <complex>
#include <memory>
#include <string_view>
#include <vector>

namespace nibble {

class MathExpression {
public:
    // Error (with the position): not an expression, longer than 4,096 bytes, or nested deeper than 64.
    static Result<MathExpression> parse(std::string_view text);

    // Evaluates the expression with every letter replaced by a number that depends only on the letter and `point`. The
    // result is not finite where the expression has no value.
    std::complex<double> at(int point) const;
    bool has_letters() const;

    // Returns true if the values at several points agree to a relative 1e-9, or, if one side is a decimal fraction, to
    // six decimal places (as in math-verify).
    friend bool equal(const MathExpression& a, const MathExpression& b);

    struct Node;

private:
    explicit MathExpression(std::shared_ptr<const Node> root, bool decimal)
        : root_(std::move(root)), decimal_(decimal) {}

    std::shared_ptr<const Node> root_;
    bool decimal_ = false;
};

}  // namespace nibble
