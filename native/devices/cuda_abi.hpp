// The part of NVIDIA's driver, libcuda.so.1, that this program uses, in declarations of its own, so
// that the build doesn't need CUDA. Values and layouts are those of the CUDA driver API.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sley::cuda {

constexpr int kVersion = 12010;  // the version of the API whose signatures these are: CUDA 12.1

enum class Result : int {
    kElsewhere = -2,  // not the driver's, like kMissing: see Error
    kMissing = -1,
    kSuccess = 0,
    kNotReady = 600,
    kPeerAccessAlreadyEnabled = 704,
};

using Device = int;
using Pointer = std::uintptr_t;         // an address in the memory of a device
using Allocation = unsigned long long;  // of virtual memory, or a multicast object
// The driver's pointers to what only it knows, as numbers.
using Context = std::uintptr_t;
using Module = std::uintptr_t;
using Function = std::uintptr_t;
using Stream = std::uintptr_t;
using Event = std::uintptr_t;

struct Uuid {
    char bytes[16];
};

struct IpcHandle {
    char bytes[64];
};

// Device attributes
constexpr int kMultiprocessors = 16, kCapabilityMajor = 75, kCapabilityMinor = 76,
              kMulticastSupported = 132;
constexpr int kNativeAtomics = 3;  // an attribute of a pair of devices
// Pointer attributes
constexpr int kMemoryType = 2, kBufferId = 7, kIsManaged = 8, kDeviceOrdinal = 9, kIpcCapable = 10,
              kAccessFlags = 16;
constexpr unsigned kHostMemory = 1;  // a type of memory
// Flags
constexpr unsigned kLazyPeerAccess = 1;            // of memory of another process
constexpr unsigned kPortable = 1, kDeviceMap = 2;  // of memory of the host
constexpr unsigned kNonBlocking = 1;               // of a stream
constexpr unsigned kDisableTiming = 2;             // of an event
constexpr unsigned kExternal = 1;                  // of a record of an event, and of a wait for it

enum class CaptureMode : int { kGlobal, kThreadLocal, kRelaxed };

enum class CaptureStatus : int { kNone, kActive, kInvalidated };

struct Location {
    static constexpr int kDevice = 1;

    int type;
    int id;
};

struct AllocationProperties {
    static constexpr int kPinned = 1;
    static constexpr int kFileDescriptor = 1;  // a kind of handles
    static constexpr int kMinimum = 0;  // the least granularity, also of multicast objects

    int type;
    int handle_types;
    Location location;
    void* win32;
    unsigned char flags[8];
};

struct MulticastProperties {
    unsigned devices;
    std::size_t bytes;
    unsigned long long handle_types;
    unsigned long long flags;
};

struct Access {
    static constexpr int kReadWrite = 3;

    Location location;
    int flags;
};

struct LaunchAttribute {
    static constexpr int kCooperative = 2;

    int id;
    int padding;
    union {
        int cooperative;
        unsigned long long rest[8];
    } value;
};

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    Stream stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

static_assert(sizeof(AllocationProperties) == 32 && sizeof(MulticastProperties) == 32);
static_assert(sizeof(Access) == 12 && sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

}  // namespace sley::cuda
