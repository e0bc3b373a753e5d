// Kernels of files, which a process loads once on each device.
//
// Beside them is the file digests.toml, as of `sley.engine.kernels.prebuilt`, because a driver takes
// whatever it gets for code.
#pragma once

#include <cstdint>
#include <string>

#include "devices/cuda_device.hpp"

namespace sley {

// The bytes of a file. Throws Refusal (N653). what: the file, for messages.
std::string bytes_of_file(const std::string& path, const std::string& what,
                          const std::string& remedy);

// Kernels on a device, which stay loaded until the process ends: a plan's, see PlanCall::Place, or one
// that runs alone.
struct LoadedKernels {
    std::uintptr_t run, divide;
    int room;  // the blocks that the device holds at once
};

class KernelFolder {
public:
    // Throws Refusal (N653).
    explicit KernelFolder(const std::string& path);

    // Loads a file's kernels. threads: of a block. divide: null without one. Throws Refusal (N653),
    // cuda::Error.
    LoadedKernels load(const CudaDevice& device, const std::string& name, unsigned threads,
                       const char* run = "sley_run", const char* divide = "sley_divide") const;

private:
    std::string path_, digests_;
};

}  // namespace sley
