// The structures of DLPack 1.3 by which array libraries exchange memory (dmlc.github.io/dlpack), and the table of C
// functions that a type offers as `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace nibble::python {

struct DlDevice {
    int32_t type = 0, id = 0;
};
enum DlDeviceType : int32_t { dl_cpu = 1, dl_cuda = 2, dl_cuda_host = 3, dl_cuda_managed = 13 };

struct DlType {
    uint8_t code = 0, bits = 0;
    uint16_t lanes = 0;
};
enum DlTypeCode : uint8_t {
    dl_int = 0,
    dl_uint = 1,
    dl_float = 2,
    dl_bfloat = 4,
    dl_complex = 5,
    dl_bool = 6,
    dl_e4m3fn = 10,
    dl_e5m2 = 12,
    dl_e8m0fnu = 14,
    dl_e2m1fn = 17
};

struct DlTensor {
    void* data = nullptr;
    DlDevice device;
    int32_t ndim = 0;
    DlType dtype;
    int64_t* shape = nullptr;
    int64_t* strides = nullptr;  // in elements; null: contiguous
    uint64_t byte_offset = 0;
};

struct DlVersion {
    uint32_t major = 0, minor = 0;
};

struct DlManaged {
    DlTensor tensor;
    void* context = nullptr;
    void (*deleter)(DlManaged*) = nullptr;
};

inline constexpr uint64_t dl_read_only = 1, dl_padded_sub_byte = 4;

struct DlManagedVersioned {
    DlVersion version;
    void* context = nullptr;
    void (*deleter)(DlManagedVersioned*) = nullptr;
    uint64_t flags = 0;
    DlTensor tensor;
};

struct DlExchangeHeader {
    DlVersion version;
    DlExchangeHeader* previous = nullptr;
};

struct DlExchange {
    DlExchangeHeader header;
    int (*allocate)(DlTensor* like, DlManagedVersioned** out, void* context,
                    void (*set_error)(void* context, const char* kind, const char* message)) = nullptr;
    int (*managed_from_object)(void* object, DlManagedVersioned** out) = nullptr;
    int (*managed_to_object)(DlManagedVersioned* tensor, void** out) = nullptr;
    int (*tensor_from_object)(void* object, DlTensor* out) = nullptr;
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out) = nullptr;
};

}  // namespace nibble::python
