namespace nibble {
struct Later;
enum class Twice { a, b };
namespace {
struct Hidden {};
}  // namespace
struct Tile {};
struct cuda::Alone::Impl {};
}  // namespace nibble
namespace nibble::cuda {
class Tile {};
}  // namespace nibble::cuda
