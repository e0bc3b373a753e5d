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

// Whether registrations of a communicator are hints for nobody.
bool has_no_registrations(const Handle* handle) {
    const Comm* comm = ready(handle);
    return comm != nullptr && (comm->is_lazy || comm->real() == nullptr);
}

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

// Unless all calls had NCCL from the beginning nothing is kept, in whatever thread or capture this comes:
// calls of sley's take any memory. A handle is there, as clients may want one.
FUNCTION(Result, CommRegister, (Handle* comm, void* buffer, size_t size, void** handle)) {
    if (!has_no_registrations(comm) || handle == nullptr) {
        return PASS(CommRegister)(comm, buffer, size, handle);
    }
    *handle = buffer;
    return Result::kSuccess;
}

FUNCTION(Result, CommDeregister, (Handle* comm, void* handle)) {
    return has_no_registrations(comm) ? Result::kSuccess : PASS(CommDeregister)(comm, handle);
}

// No memory of NCCL's.
FUNCTION(Result, CommSuspend, (Handle* comm, int flags)) {
    return alone(comm) != nullptr ? Result::kSuccess : PASS(CommSuspend)(comm, flags);
}

FUNCTION(Result, CommResume, (Handle* comm)) {
    return alone(comm) != nullptr ? Result::kSuccess : PASS(CommResume)(comm);
}

// Without NCCL there are no windows for kernels. It, too, gives a null where a GPU can't have them.
FUNCTION(Result, CommWindowRegister, (Handle* comm, void* buffer, size_t size, void** window,
                                      int flags)) {
    Comm* own = alone(comm);
    if (own == nullptr || own->is_lazy || window == nullptr) {
        const auto call = [=] { return PASS(CommWindowRegister)(comm, buffer, size, window, flags); };
        if (own == nullptr) return call();
        return pass_together(*own, kCommWindowRegister.text, "", call);
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
