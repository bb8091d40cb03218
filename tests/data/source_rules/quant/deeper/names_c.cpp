namespace nibble {
namespace {

int most() { return 1; }

}  // namespace
}  // namespace nibble
