#include "tensor/device.h"

#include "tensor/cuda/call.h"

namespace nibble {

namespace {

Result<DeviceInfo> device_info(int index) {
    cudaDeviceProp p{};
    NIBBLE_CUDA_CALL(cudaGetDeviceProperties, &p, index);
    std::string uuid;
    for (const char byte : p.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return DeviceInfo{index,
                      p.name,
                      p.major,
                      p.minor,
                      p.multiProcessorCount,
                      static_cast<int64_t>(p.totalGlobalMem),
                      static_cast<int64_t>(p.l2CacheSize),
                      std::move(uuid)};
}

}  // namespace

Result<std::vector<DeviceInfo>> list_devices() {
    int count = 0;
    NIBBLE_CUDA_CALL(cudaGetDeviceCount, &count);
    if (count == 0) return fail(ErrorKind::device, "cudaGetDeviceCount: the driver shows no GPU");
    std::vector<DeviceInfo> devices;
    for (int i = 0; i < count; ++i) {
        NIBBLE_TRY(auto info, device_info(i));
        devices.push_back(std::move(info));
    }
    return devices;
}

Result<DeviceInfo> open_device(const DeviceChoice& choice) {
    if (!choice.cuda) return fail(ErrorKind::device, "device cpu is not a GPU");
    NIBBLE_TRY(const auto devices, list_devices().within(fmt::format("device cuda:{}", choice.index)));
    if (choice.index >= static_cast<int>(devices.size())) {
        std::string there;
        for (const DeviceInfo& d : devices)
            there += fmt::format("{}cuda:{} ({})", there.empty() ? "" : ", ", d.index, d.name);
        return fail(ErrorKind::device, "device cuda:{}: this machine has {}", choice.index, there);
    }
    const DeviceInfo& info = devices[static_cast<size_t>(choice.index)];
    if (info.major != 9 && info.major != 10 && info.major != 12)
        return fail(
            ErrorKind::device,
            "device cuda:{}: {} has compute capability {}.{}; nibble's kernels need 9.0, 10.0 or 12.0; use --device "
            "cpu",
            choice.index, info.name, info.major, info.minor);
    return info;
}

Status use_device(int device) { return cuda_status(cudaSetDevice(device), "cudaSetDevice"); }

Result<Stream> Stream::create(int device, Priority priority) {
    CurrentDevice current(device);
    NIBBLE_CHECK(current.status());
    int least = 0, greatest = 0;
    NIBBLE_CUDA_CALL(cudaDeviceGetStreamPriorityRange, &least, &greatest);
    cudaStream_t stream = nullptr;
    NIBBLE_CUDA_CALL(cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking,
                     priority == Priority::high ? greatest : 0);
    return Stream(stream, device);
}

void Stream::Destroy::operator()(void* handle) const { cudaStreamDestroy(static_cast<cudaStream_t>(handle)); }

Status Stream::synchronize() const {
    return cuda_status(cudaStreamSynchronize(static_cast<cudaStream_t>(handle())), "cudaStreamSynchronize");
}

Result<Event> Event::create() {
    cudaEvent_t event = nullptr;
    NIBBLE_CUDA_CALL(cudaEventCreate, &event);
    return Event(event);
}

Result<Event> Event::create_sleeping() {
    cudaEvent_t event = nullptr;
    NIBBLE_CUDA_CALL(cudaEventCreateWithFlags, &event, cudaEventBlockingSync | cudaEventDisableTiming);
    return Event(event);
}

void Event::Destroy::operator()(void* handle) const { cudaEventDestroy(static_cast<cudaEvent_t>(handle)); }

Status Event::record(const Stream& stream) {
    return cuda_status(
        cudaEventRecord(static_cast<cudaEvent_t>(handle_.get()), static_cast<cudaStream_t>(stream.handle())),
        "cudaEventRecord");
}

Status Event::synchronize() const {
    return cuda_status(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_.get())), "cudaEventSynchronize");
}

Result<bool> Event::happened() const {
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(handle_.get()));
    if (code == cudaErrorNotReady) return false;
    NIBBLE_CHECK(cuda_status(code, "cudaEventQuery"));
    return true;
}

Status Event::make_wait(const Stream& stream) {
    return cuda_status(
        cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle()), static_cast<cudaEvent_t>(handle_.get()), 0),
        "cudaStreamWaitEvent");
}

Result<float> Event::since(const Event& begin) const {
    float milliseconds = 0;
    NIBBLE_CUDA_CALL(cudaEventElapsedTime, &milliseconds, static_cast<cudaEvent_t>(begin.handle_.get()),
                     static_cast<cudaEvent_t>(handle_.get()));
    return milliseconds;
}

Result<Graph> Graph::capture(const Stream& stream, const std::function<Status()>& queue) {
    const auto s = static_cast<cudaStream_t>(stream.handle());
    NIBBLE_CUDA_CALL(cudaStreamBeginCapture, s, cudaStreamCaptureModeThreadLocal);
    Status queued = queue();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(s, &graph);
    NIBBLE_CHECK(std::move(queued));
    NIBBLE_CHECK(cuda_status(ended, "cudaStreamEndCapture"));
    cudaGraphExec_t exec = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    NIBBLE_CHECK(cuda_status(made, "cudaGraphInstantiate"));
    return Graph(exec);
}

Status Graph::launch(const Stream& stream) const {
    return cuda_status(
        cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_.get()), static_cast<cudaStream_t>(stream.handle())),
        "cudaGraphLaunch");
}

void Graph::Destroy::operator()(void* handle) const { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle)); }

}  // namespace nibble
