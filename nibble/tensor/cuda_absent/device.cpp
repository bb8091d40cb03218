// The twin of tensor/cuda/ in a build without CUDA: no handle can be made, so no other call can be reached with a live
// one.
#include "tensor/device.h"

namespace nibble {

namespace {

Error absent() {
    return fail(ErrorKind::device, "this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace

Result<std::vector<DeviceInfo>> list_devices() { return absent(); }
Result<DeviceInfo> open_device(const DeviceChoice& choice) {
    return choice.cuda ? absent() : fail(ErrorKind::device, "device cpu is not a GPU");
}

Result<DeviceMemory> device_memory(int) { return absent(); }
Status limit_device_memory(int, double) { return absent(); }
Status use_device(int) { return absent(); }

Result<Stream> Stream::create(int, Priority) { return absent(); }
void Stream::Destroy::operator()(void*) const {}
Status Stream::synchronize() const { return absent(); }

Result<Event> Event::create() { return absent(); }
Result<Event> Event::create_sleeping() { return absent(); }
void Event::Destroy::operator()(void*) const {}
Status Event::record(const Stream&) { return absent(); }
Status Event::synchronize() const { return absent(); }
Result<bool> Event::happened() const { return absent(); }
Status Event::make_wait(const Stream&) { return absent(); }
Result<float> Event::since(const Event&) const { return absent(); }

Result<Graph> Graph::capture(const Stream&, const std::function<Status()>&) { return absent(); }
Status Graph::launch(const Stream&) const { return absent(); }
void Graph::Destroy::operator()(void*) const {}

Result<DeviceArena> DeviceArena::create(int, int64_t) { return absent(); }
Result<std::byte*> DeviceArena::allocate(int64_t) { return absent(); }
void DeviceArena::Free::operator()(std::byte*) const {}

Result<PinnedBuffer> PinnedBuffer::create(int64_t) { return absent(); }
void PinnedBuffer::Free::operator()(std::byte*) const {}

Status copy_to_device(std::byte*, const std::byte*, int64_t, const Stream&) { return absent(); }
Status copy_to_host(std::byte*, const std::byte*, int64_t, const Stream&) { return absent(); }
Status copy_on_device(std::byte*, const std::byte*, int64_t, const Stream&) { return absent(); }
Status fill_device(std::byte*, uint8_t, int64_t, const Stream&) { return absent(); }

}  // namespace nibble
