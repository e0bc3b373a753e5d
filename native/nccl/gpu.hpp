// The GPU of a rank.
#pragma once

#include <string>

#include "devices/cuda_device.hpp"

namespace sley::nccl {

struct Gpu {
    CudaDevice* device = nullptr;  // lasts until the process ends
    cuda::Context context = 0;     // its
    std::string lacks;             // why there is none

    // Of this thread, as NVIDIA's runtime chooses it.
    static Gpu current();
    static Gpu with(int ordinal);
};

}  // namespace sley::nccl
