#include "devices/cuda_driver.hpp"

#include <dlfcn.h>

#include "devices/refusal.hpp"

namespace sley::cuda {
namespace {

using GetProcAddress = Result (*)(const char* name, void** function, int version,
                                  std::uint64_t flags, int* status);

// It stays loaded. An initialiser that throws is run again by the next caller.
void* library() {
    static void* const loaded = [] {
        void* found = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (found != nullptr) return found;
        throw Refusal("K501", "NVIDIA's driver (libcuda.so.1)", dlerror(), {},
                      "Use a machine with an NVIDIA GPU and its driver, on which `nvidia-smi` works; "
                      "containers get the driver from the host (docker: --gpus all).");
    }();
    return loaded;
}

std::string of(Entry<Result, const char**>& what, Result code) {
    const char* text = nullptr;
    return what(code, &text) == Result::kSuccess && text != nullptr ? text : "";
}

}  // namespace

Error::Error(const char* function, Result code, const Purpose& purpose)
    : std::runtime_error(function),
      function(function),
      doing(std::string(purpose.doing).append(purpose.what)),
      subject(purpose.subject) {
    if (code == Result::kMissing || code == Result::kElsewhere) {
        name = code == Result::kMissing ? "missing" : "elsewhere";
        return;
    }
    name = of(cuGetErrorName, code);
    words = of(cuGetErrorString, code);
}

// Exported names are of the functions' first versions; cuGetProcAddress finds the variant of kVersion.
// A driver older than CUDA 12 lacks it, but can still be asked for its version.
void* find(const char* name) {
    static const auto look_up =
        reinterpret_cast<GetProcAddress>(dlsym(library(), "cuGetProcAddress_v2"));
    if (look_up == nullptr) return dlsym(library(), name);
    void* function = nullptr;
    int status = 0;
    return look_up(name, &function, kVersion, 0, &status) == Result::kSuccess ? function : nullptr;
}

void start() {
    call(cuInit, {"starting the driver"}, 0U);
}

}  // namespace sley::cuda
