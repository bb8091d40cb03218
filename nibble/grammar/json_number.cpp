#include "grammar/json_number.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace nibble {
namespace {

constexpr int fixed_digits = 15;

FixedNumber ten_to(int n) {
    FixedNumber out = 1;
    for (; n > 0; --n) out *= 10;
    return out;
}

ExprPtr digit_range(char first, char last) { return expression::set({{char32_t(first), char32_t(last)}}); }

std::string padded(FixedNumber value, size_t digits) {
    std::string out(digits, '0');
    for (size_t i = digits; i-- > 0; value /= 10) out[i] = char('0' + int(value % 10));
    return out;
}

// Texts of all numbers between two digit strings of equal length. The first `before` digits precede the decimal point;
// trailing zeros after it may be omitted.
class DigitRange {
public:
    DigitRange(std::string low, std::string high, size_t before)
        : low_(std::move(low)), high_(std::move(high)), before_(before) {}

    ExprPtr run() const { return from(0, true, true); }

private:
    bool all(const std::string& digits, size_t at, char digit) const {
        return digits.find_first_not_of(digit, at) == digits.npos;
    }

    // Digits from `at` on. `low`, `high`: all previous digits equal the bound's.
    ExprPtr from(size_t at, bool low, bool high) const {
        const bool free_low = !low || all(low_, at, '0'), free_high = !high || all(high_, at, '9');
        if (at == low_.size()) return expression::text("");
        if (free_low && free_high) return rest(at);
        if (at == before_) {
            const ExprPtr fraction = expression::sequence({expression::text("."), digits(at, low, high)});
            return free_low ? expression::optional(fraction) : fraction;
        }
        const ExprPtr more = digits(at, low, high);
        return at > before_ && free_low ? expression::optional(more) : more;
    }

    ExprPtr digits(size_t at, bool low, bool high) const {
        const char a = low ? low_[at] : '0', b = high ? high_[at] : '9';
        const auto step = [&](char first, char last, bool is_low, bool is_high) {
            return expression::sequence({digit_range(first, last), from(at + 1, is_low, is_high)});
        };
        if (a == b) return step(a, a, low, high);
        std::vector<ExprPtr> ways;
        char first = a, last = b;
        if (low) ways.push_back(step(first, first, true, false)), ++first;
        if (high) ways.push_back(step(last, last, false, true)), --last;
        if (first <= last) ways.push_back(step(first, last, false, false));
        return expression::choice(std::move(ways));
    }

    ExprPtr rest(size_t at) const {
        const ExprPtr any = digit_range('0', '9');
        if (at > before_) return expression::repeat(any, 0, low_.size() - at);
        ExprPtr whole = expression::repeat(any, before_ - at, before_ - at);
        if (low_.size() == before_) return whole;
        return expression::sequence(
            {whole, expression::optional(expression::sequence(
                        {expression::text("."), expression::repeat(any, 1, low_.size() - before_)}))});
    }

    std::string low_, high_;
    size_t before_;
};

// Adds numbers from `low` >= 0 to `high` in units of 10^-after, with at most `most` digits before the point.
void positive_range(FixedNumber low, FixedNumber high, int most, int after, std::vector<ExprPtr>& out,
                    const char* sign) {
    const FixedNumber unit = ten_to(after);
    for (int n = 1; n <= most; ++n) {
        const FixedNumber first = std::max(low, n == 1 ? FixedNumber(0) : ten_to(n - 1) * unit);
        const FixedNumber last = std::min(high, ten_to(n) * unit - 1);
        if (first > last) continue;
        const auto digits = size_t(n + after);
        out.push_back(expression::sequence(
            {expression::text(sign), DigitRange(padded(first, digits), padded(last, digits), size_t(n)).run()}));
    }
}

FixedNumber down(FixedNumber value, FixedNumber unit) {
    const FixedNumber q = value / unit;
    return value % unit < 0 ? q - 1 : q;
}

// Decimal integers divisible by `multiple`, as an automaton over remainders.
ExprPtr multiples(int64_t multiple) {
    const auto m = uint32_t(multiple);
    std::vector<GrammarExpression::Arc> arcs;
    const auto arc = [&](uint32_t from, uint32_t to, char digit) {
        arcs.push_back({from, to, expression::text(std::string(1, digit))});
    };
    // Nodes: 0 start, 1 end, 2 after the sign, 3 + remainder.
    arc(0, 2, '-');
    arcs.push_back({0, 2, expression::text("")});
    arc(2, 1, '0');
    for (uint32_t d = 1; d < 10; ++d) arc(2, 3 + d % m, char('0' + d));
    for (uint32_t r = 0; r < m; ++r)
        for (uint32_t d = 0; d < 10; ++d) arc(3 + r, 3 + (r * 10 + d) % m, char('0' + d));
    arcs.push_back({3, 1, expression::text("")});
    return expression::graph(3 + m, std::move(arcs));
}

ExprPtr free_number(bool whole) {
    const ExprPtr digit = digit_range('0', '9');
    std::vector<ExprPtr> parts{
        expression::optional(expression::text("-")),
        expression::choice(
            {expression::text("0"), expression::sequence({digit_range('1', '9'), expression::repeat(digit, 0, 17)})})};
    if (!whole) {
        parts.push_back(
            expression::optional(expression::sequence({expression::text("."), expression::repeat(digit, 1, 15)})));
        parts.push_back(expression::optional(expression::sequence(
            {expression::set({{'e', 'e'}, {'E', 'E'}}), expression::optional(expression::set({{'+', '+'}, {'-', '-'}})),
             expression::repeat(digit, 1, 2)})));
    }
    return expression::sequence(std::move(parts));
}

}  // namespace

Result<FixedNumber> fixed_number(const Json& number) {
    if (std::abs(number.get<double>()) >= 1e18) return fail("numbers beyond 1e18 are not supported");
    std::string text = number.dump();
    const bool negative = text.starts_with('-');
    if (negative) text.erase(0, 1);
    int exponent = 0;
    if (const size_t e = text.find_first_of("eE"); e != text.npos) {
        exponent = std::atoi(text.c_str() + e + 1);
        text.resize(e);
    }
    if (const size_t point = text.find('.'); point != text.npos) {
        exponent -= int(text.size() - point - 1);
        text.erase(point, 1);
    }
    while (text.size() > 1 && text.back() == '0') text.pop_back(), ++exponent;
    FixedNumber value = 0;
    for (const char c : text) value = value * 10 + (c - '0');
    if (value == 0) return FixedNumber(0);
    if (exponent < -fixed_digits) return fail("numbers with more than {} digits after the decimal point", fixed_digits);
    value *= ten_to(exponent + fixed_digits);
    return negative ? -value : value;
}

bool NumberBounds::has(const Json& number) const {
    const auto value = fixed_number(number);
    const FixedNumber unit = ten_to(fixed_digits);
    if (multiple > 1000) return false;
    if (!value.ok()) return !whole && free();  // not comparable: such a number is outside all bounds
    if (whole && (*value % unit != 0 || (*value / unit) % multiple != 0)) return false;
    if (least && (*value < *least || (least_open && *value == *least))) return false;
    return !(most && (*value > *most || (most_open && *value == *most)));
}

Result<ExprPtr> number_texts(const NumberBounds& bounds, GrammarBudget& budget) {
    if (bounds.free()) return free_number(bounds.whole);
    if (bounds.multiple > 1000) return fail("multiples of more than 1000 are not supported");
    const FixedNumber one = ten_to(fixed_digits);
    // Digits before and after the point.
    int before = 9, after = 0;
    for (const auto& bound : {bounds.least, bounds.most}) {
        if (!bound) continue;
        const FixedNumber size = *bound < 0 ? -*bound : *bound;
        while (ten_to(before) * one <= size) ++before;
        int digits = 0;
        while (size % (one / ten_to(digits)) != 0) ++digits;
        after = std::max(after, digits);
    }
    if (bounds.whole) {
        before = 18;
        after = 0;
    } else {
        if (after + before > fixed_digits && after > 0)
            return fail("bounds with more than {} digits are not supported", fixed_digits);
        after = std::max(0, fixed_digits - before);
    }
    const FixedNumber unit = one / ten_to(after), limit = ten_to(before + after) - 1;
    FixedNumber low = -limit, high = limit;
    if (bounds.least) {
        low = -down(-*bounds.least, unit);
        if (bounds.least_open && low * unit == *bounds.least) ++low;
    }
    if (bounds.most) {
        high = down(*bounds.most, unit);
        if (bounds.most_open && high * unit == *bounds.most) --high;
    }
    std::vector<ExprPtr> ways;
    if (high >= 0) positive_range(std::max<FixedNumber>(low, 0), high, before, after, ways, "");
    if (low < 0) positive_range(high < 0 ? -high : FixedNumber(1), -low, before, after, ways, "-");
    ExprPtr out = expression::choice(std::move(ways));
    if (bounds.multiple == 1) return out;
    NIBBLE_TRY(const Dfa range, Dfa::of(*out, budget));
    NIBBLE_TRY(const Dfa divided, Dfa::of(*multiples(bounds.multiple), budget));
    NIBBLE_TRY(Dfa both, Dfa::both(range, divided, budget));
    return expression::automaton(std::move(both));
}

}  // namespace nibble
