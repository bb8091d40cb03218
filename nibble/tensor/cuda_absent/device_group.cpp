// The twin of tensor/cuda/device_group.cpp in a build without CUDA.
#include "tensor/device_group.h"

namespace nibble {
namespace {

Error absent() {
    return fail(ErrorKind::device, "this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace

Result<DeviceGroup::Id> DeviceGroup::make_id() { return absent(); }
Result<DeviceGroup> DeviceGroup::create(const Id&, int, int, int, Alive) { return absent(); }
DeviceGroup DeviceGroup::over(Exchange exchange) {
    DeviceGroup group;
    group.exchange_ = std::move(exchange);
    return group;
}
void DeviceGroup::Close::operator()(void*) const {}
Status DeviceGroup::exchange(std::span<const Part>, std::span<const Part>, const Stream&) { return absent(); }
Status DeviceGroup::add(std::span<const Sum>, const Stream&) { return absent(); }
Status DeviceGroup::wait(const Stream&) { return absent(); }
Status DeviceGroup::wait(const Event&) { return absent(); }

}  // namespace nibble
