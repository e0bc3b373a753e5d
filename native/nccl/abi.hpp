// NCCL's binary interface, 2.28 to 2.32 (and clients of 2.27): what sley looks into. No header of
// NCCL's is included: numbers, sizes and offsets are facts, and tests compare them with headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sley::nccl {

enum class Result : int {
    kSuccess = 0,
    kUnhandledCudaError = 1,
    kSystemError = 2,
    kInternalError = 3,
    kInvalidArgument = 4,
    kInvalidUsage = 5,
    kRemoteError = 6,
    kInProgress = 7,
    kTimeout = 8,  // clients of 2.28 and 2.29 don't know it: only the real library returns it
};

inline bool is_error(Result result) {
    return result != Result::kSuccess && result != Result::kInProgress;
}

struct Handle;              // what callers hold for a communicator
enum class RedOp : int {};  // built in below kBuiltInOps, else made for a communicator
constexpr int kBuiltInOps = 5;
struct UniqueId {
    char bytes[128];
};
struct Team {
    int ranks, rank, stride;
};
struct MultimemHandle {
    void* base;
};

// Every version appends fields. So a client's struct is as long as its `size` says, and its fields
// beyond that are not there.
struct Config {
#define FIELD(type, name, offset, since) type name;
#include "nccl/config.def"
};
#define FIELD(type, name, offset, since) static_assert(offsetof(Config, name) == offset);
#include "nccl/config.def"
constexpr unsigned kMagic = 0xcafebeef;
// The first fields of ncclCommProperties; those after them say what kernels can use.
struct Properties {
    std::size_t size;
    unsigned magic, version;
    int rank, ranks, device, nvml_device;
};
struct Estimate {
    std::size_t size;
    unsigned magic, version;
    float us;
};
constexpr unsigned kEstimateMagic = 0x74685283;

}  // namespace sley::nccl
