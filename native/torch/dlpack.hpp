// The parts of DLPack that read a tensor of a Python framework, as version 1 of its C interface
// defines them (dmlc/dlpack, dlpack.h, 1.3). Declared here, since no package of Python has them.
#pragma once

#include <cstdint>

namespace sley::dlpack {

struct Device {
    std::int32_t type;
    std::int32_t id;
};
constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // null: none, the tensor has no gaps
    std::uint64_t byte_offset;
};

inline std::int64_t elements(const Tensor& tensor) {
    std::int64_t product = 1;
    for (std::int32_t d = 0; d < tensor.ndim; ++d) product *= tensor.shape[d];
    return product;
}

// Whether elements don't lie side by side, in the order of their indices.
inline bool has_gaps(const Tensor& tensor) {
    if (tensor.strides == nullptr || elements(tensor) == 0) return false;
    std::int64_t expected = 1;
    for (std::int32_t d = tensor.ndim - 1; d >= 0; --d) {
        if (tensor.shape[d] == 1) continue;
        if (tensor.strides[d] != expected) return true;
        expected *= tensor.shape[d];
    }
    return false;
}

// What a Python capsule "dltensor_versioned" points to; a "dltensor" begins with the tensor.
struct VersionedTensor {
    std::uint32_t major, minor;
    void* manager;
    void (*destroy)(VersionedTensor*);
    std::uint64_t flags;
    Tensor tensor;
};
constexpr std::uint64_t kReadOnly = 1;  // a flag

struct ExchangeHeader {
    std::uint32_t major, minor;
    ExchangeHeader* previous;  // the functions of an older version
};
constexpr std::uint32_t kMajor = 1;

// Functions of a framework. The first argument of `read` is a Python object. It returns 0, or sets
// Python's error; what it writes is valid as long as the caller holds Python's lock.
struct Exchange {
    ExchangeHeader header;
    void* allocate;
    void* export_owned;
    void* import_owned;
    int (*read)(void* object, Tensor* out);
    void* current_stream;
};
constexpr const char* kCapsule = "dlpack_exchange_api";

}  // namespace sley::dlpack
