// Multicast: memory of several GPUs that a switch reads and writes at once (NVLink SHARP).
//
// Source: CUDA driver API, "Multicast Object Management" and "Virtual Memory Management".
#include <numeric>

#include "devices/cuda_device.hpp"

namespace sley {
namespace {

using namespace cuda;

using Steps = std::vector<std::function<void()>>;

// Undoes what was made, the last step first.
void take_apart(Steps& steps) {
    for (; !steps.empty(); steps.pop_back()) steps.back()();
}

class Team {
public:
    Team(const std::vector<cuda::Device>& devices, const Purpose& purpose, std::size_t bytes, Steps& undo)
        : purpose_(purpose), undo_(undo) {
        for (const cuda::Device device : devices) {
            access_.push_back({{Location::kDevice, device}, Access::kReadWrite});
        }
        MulticastProperties team{static_cast<unsigned>(devices.size()), bytes, 0, 0};
        make(cuMulticastGetGranularity, &granularity_, &team, AllocationProperties::kMinimum);
        for (const Access& each : access_) {
            const auto kind = memory_on(each.location);
            std::size_t other = 0;
            make(cuMemGetAllocationGranularity, &other, &kind, AllocationProperties::kMinimum);
            granularity_ = std::lcm(granularity_, other);
        }
        bytes_ = (bytes + granularity_ - 1) / granularity_ * granularity_;
        team.bytes = bytes_;
        make(cuMulticastCreate, &team_, &team);
        undo_.emplace_back([team = team_] { cuMemRelease(team); });
        // All of them, before memory is bound or mapped.
        for (const cuda::Device device : devices) make(cuMulticastAddDevice, team_, device);
        for (const Access& each : access_) made_.parts.push_back(part(each.location));
        made_.switched = map(team_);
    }
    SwitchedMemory made() { return made_; }

private:
    static AllocationProperties memory_on(Location location) {
        AllocationProperties kind{};
        kind.type = AllocationProperties::kPinned;
        kind.location = location;
        return kind;
    }

    // Memory of a device, bound to the multicast object: its address.
    Pointer part(Location location) {
        const auto kind = memory_on(location);
        Allocation memory = 0;
        make(cuMemCreate, &memory, bytes_, &kind, 0ULL);
        undo_.emplace_back([memory] { cuMemRelease(memory); });
        make(cuMulticastBindMem, team_, std::size_t{0}, memory, std::size_t{0}, bytes_, 0ULL);
        undo_.emplace_back([team = team_, device = location.id, bytes = bytes_] {
            cuMulticastUnbind(team, device, 0, bytes);
        });
        return map(memory);
    }

    // An address of memory, or of a multicast object, for kernels on all of the devices.
    Pointer map(Allocation memory) {
        Pointer address = 0;
        make(cuMemAddressReserve, &address, bytes_, granularity_, Pointer{0}, 0ULL);
        undo_.emplace_back([address, bytes = bytes_] { cuMemAddressFree(address, bytes); });
        make(cuMemMap, address, bytes_, std::size_t{0}, memory, 0ULL);
        undo_.emplace_back([address, bytes = bytes_] { cuMemUnmap(address, bytes); });
        make(cuMemSetAccess, address, bytes_, access_.data(), access_.size());
        return address;
    }

    template <class Function, class... Given>
    void make(Function& function, Given... given) {
        call(function, purpose_, given...);
    }

    Purpose purpose_;
    Steps& undo_;
    std::vector<Access> access_;
    std::size_t granularity_ = 0, bytes_ = 0;
    Allocation team_ = 0;
    SwitchedMemory made_;
};

}  // namespace

SwitchedMemory CudaDevice::window(const std::vector<CudaDevice*>& devices, std::size_t bytes) {
    std::string names;
    std::vector<cuda::Device> numbers;
    std::vector<Context> contexts;
    for (const CudaDevice* each : devices) {
        names += (names.empty() ? "" : " and ") + each->name_;
        numbers.push_back(each->device_);
        contexts.push_back(each->context_);
    }
    const auto undo = std::make_shared<Steps>();
    SwitchedMemory made;
    {
        const ApartFromCaptures apart(contexts.front());
        try {
            made = Team(numbers, {"letting a switch use memory of ", names}, bytes, *undo).made();
        } catch (const Error&) {
            take_apart(*undo);
            throw;
        }
    }
    // After the work of the devices, as cuMemFree, which waits by itself.
    made.owner = devices.front()->until([contexts, undo] {
        for (const Context context : contexts) {
            try {
                const Current current(context);
                cuCtxSynchronize();
            } catch (const Error&) {  // see Resource
            }
        }
        take_apart(*undo);
    });
    for (std::size_t k = 0; k < devices.size(); ++k) {
        const ApartFromCaptures apart(contexts[k]);
        devices[k]->zero(made.parts[k], bytes, "clearing memory of " + devices[k]->name_);
    }
    return made;
}

}  // namespace sley
