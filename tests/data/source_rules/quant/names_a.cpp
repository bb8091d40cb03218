#include <string>
namespace nibble {
namespace {
namespace fs = std::filesystem;
using Same = std::string;
using Count = int;
class Later;
std::string gib(long bytes) { return std::to_string(bytes) + "gib(long)"; }
constexpr int most = 1 << 20;
struct Row {
    int most = 0;
    void gib(long) {}
};
const Row table[] = {{1}, {2}};
template <class T, int N = 4>
T wide(const T& value, int times = (N)) {
    int most = times;
    return value * most;
}
int overloaded(int x) { return x; }
}  // namespace
static int hidden(int x) { return x; }
static_assert(most > 0);
int visible(int x) { return hidden(x) + overloaded(x); }
}  // namespace nibble
