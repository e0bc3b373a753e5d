#include "nccl/gpu.hpp"

#include <map>
#include <mutex>

#include "nccl/forks.hpp"

namespace sley::nccl {
namespace {

struct Devices {
    std::mutex mutex;
    std::map<int, CudaDevice*> by_ordinal;
};

}  // namespace

Gpu Gpu::current() {
    try {
        cuda::start();
        cuda::Device device = 0;
        // Without a context the thread has chosen none: the runtime takes the first device.
        if (cuda::cuCtxGetDevice(&device) != cuda::Result::kSuccess) return with(0);
        // A device's number in the driver is its place among those that the process sees.
        return with(static_cast<int>(device));
    } catch (const std::exception& none) {
        return {nullptr, 0, none.what()};
    }
}

Gpu Gpu::with(int ordinal) {
    static OfProcess<Devices> devices;
    const std::lock_guard held(devices->mutex);
    try {
        cuda::start();
        auto& device = devices->by_ordinal[ordinal];
        if (device == nullptr) device = new CudaDevice(ordinal);
        return {device, device->context(), ""};
    } catch (const std::exception& none) {
        return {nullptr, 0, none.what()};
    }
}

}  // namespace sley::nccl
