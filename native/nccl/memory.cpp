// Memory in NCCL's interface: what it allocates, and what callers register.
#include <cstdio>
#include <map>
#include <mutex>

#include "nccl/forks.hpp"
#include "nccl/gpu.hpp"
#include "nccl/passing.hpp"

namespace sley::nccl {
namespace {

// What ncclMemAlloc gave where there is no NCCL.
struct Allocations {
    std::mutex mutex;
    std::map<void*, Resource> by_address;
};
OfProcess<Allocations> allocations;

}  // namespace

FUNCTION(Result, MemAlloc, (void** pointer, size_t size)) {
    if (pointer == nullptr || !Settings::from_environment().is_alone()) {
        return PASS(MemAlloc)(pointer, size);
    }
    *pointer = nullptr;
    if (size == 0) return Result::kSuccess;
    const auto gpu = Gpu::current();
    if (gpu.device == nullptr) {
        return refuse(Result::kUnhandledCudaError, {"K510", "a GPU for ncclMemAlloc", gpu.lacks});
    }
    return guarded([&] {
        auto made = gpu.device->allocate_shared(size);  // other processes can map it, as NCCL's
        auto* address = reinterpret_cast<void*>(made.address);
        auto& all = *allocations;
        const std::lock_guard held(all.mutex);
        all.by_address[address] = std::move(made);
        *pointer = address;
        return Result::kSuccess;
    });
}

FUNCTION(Result, MemFree, (void* pointer)) {
    auto& all = *allocations;
    decltype(all.by_address)::node_type freed;  // without the lock
    {
        const std::lock_guard held(all.mutex);
        freed = all.by_address.extract(pointer);
    }
    if (!freed.empty()) return Result::kSuccess;
    if (!Settings::from_environment().is_alone()) return PASS(MemFree)(pointer);
    if (pointer == nullptr) return Result::kSuccess;
    char text[32];
    std::snprintf(text, sizeof text, "%p", pointer);
    return refuse(Result::kInvalidArgument, "N705", "memory of ncclMemAlloc for ncclMemFree", text,
                  "Free each piece once, by the address that ncclMemAlloc gave.");
}

// Without NCCL nothing is kept, in whatever thread or capture this comes: calls of sley's take any
// memory. A handle is there, as clients may want one.
FUNCTION(Result, CommRegister, (Handle* comm, void* buffer, size_t size, void** handle)) {
    if (alone(comm) == nullptr || handle == nullptr) {
        return PASS(CommRegister)(comm, buffer, size, handle);
    }
    *handle = buffer;
    return Result::kSuccess;
}

FUNCTION(Result, CommDeregister, (Handle* comm, void* handle)) {
    return alone(comm) != nullptr ? Result::kSuccess : PASS(CommDeregister)(comm, handle);
}

// Without NCCL there are no windows for kernels. It, too, gives a null where a GPU can't have them.
FUNCTION(Result, CommWindowRegister, (Handle* comm, void* buffer, size_t size, void** window,
                                      int flags)) {
    if (alone(comm) == nullptr || window == nullptr) {
        return PASS(CommWindowRegister)(comm, buffer, size, window, flags);
    }
    if (buffer == nullptr || size == 0) {
        return group.note(refuse(Result::kInvalidArgument, "N705",
                                 "memory for ncclCommWindowRegister", "none",
                                 "Register a buffer that is there."));
    }
    *window = nullptr;
    return Result::kSuccess;
}

FUNCTION(Result, CommWindowDeregister, (Handle* comm, void* window)) {
    const bool is_none = window == nullptr && alone(comm) != nullptr;
    return is_none ? Result::kSuccess : PASS(CommWindowDeregister)(comm, window);
}

}  // namespace sley::nccl
