// The real NCCL, to which calls are passed on.
#pragma once

#include <atomic>
#include <string>

#include "nccl/abi.hpp"

namespace sley::nccl {

struct Real {
    std::string path;
    std::string version;  // "2.29.7"
    // Its functions by name, null where it has none.
#define OWN(result, name, since, parameters, arguments) result(*name) parameters = nullptr;
#define PASSED OWN
#include "nccl/functions.def"
};

namespace detail {
extern std::atomic<const Real*> opened;
const Real& open();
}  // namespace detail

// Opened at the first call, and never closed. Where none is found its path is empty, all functions
// are null, and the next call looks again: an object that names a place may come later.
inline const Real& real() {
    const Real* found = detail::opened.load(std::memory_order_acquire);
    return found != nullptr ? *found : detail::open();
}

// Whether there is one. It doesn't look a second time, as groups of sley's calls would have it often.
bool has_real();

// The refusal of a function that the real library doesn't have, or of any if there is no library.
Result lacking(const char* function, const char* since);

}  // namespace sley::nccl
