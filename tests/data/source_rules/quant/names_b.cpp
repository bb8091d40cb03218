#include <string>
namespace nibble {
namespace {
namespace fs = std::filesystem;
using Same = std::string;
class Later;
double overloaded(double x) { return x; }
// std::string missing(long bytes);
const char* text = "constexpr int most = 1;";
[[maybe_unused]] std::string gib(const long bytes_of_it);
int most;
enum class Row { first, second };
using Count = long;
int table = 3;
template <class T>
T wide(const T& other, int n) {
    return other * n;
}
static int hidden(int y) { return y; }
}  // namespace
int visible(double x) { return static_cast<int>(overloaded(x)); }
}  // namespace nibble
