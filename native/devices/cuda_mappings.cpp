// Memory that is mapped: what processes share by file descriptors, and memory of several GPUs that a
// switch reads and writes at once (multicast, NVLink SHARP).
//
// Source: CUDA driver API, "Virtual Memory Management" and "Multicast Object Management".
#include <numeric>

#include "devices/cuda_device.hpp"
#include "devices/deferred_free.hpp"

namespace sley {
namespace {

using namespace cuda;

using Steps = std::vector<std::function<void()>>;

// Undoes what was made, the last step first.
void take_apart(Steps& steps) {
    for (; !steps.empty(); steps.pop_back()) steps.back()();
}

AllocationProperties memory_on(cuda::Device device, int handle_types = 0) {
    AllocationProperties kind{};
    kind.type = AllocationProperties::kPinned;
    kind.handle_types = handle_types;
    kind.location = {Location::kDevice, device};
    return kind;
}

std::size_t granularity_of(const AllocationProperties& kind, const Purpose& purpose) {
    std::size_t granularity = 0;
    call(cuMemGetAllocationGranularity, purpose, &granularity, &kind,
         AllocationProperties::kMinimum);
    return granularity;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// An address of memory, or of a multicast object, for kernels on the devices. The bytes are whole
// pieces, of the granularity of their kind.
Pointer map(Allocation memory, std::size_t bytes, std::size_t granularity,
            const std::vector<cuda::Device>& users, const Purpose& purpose, Steps& undo) {
    Pointer address = 0;
    call(cuMemAddressReserve, purpose, &address, bytes, granularity, Pointer{0}, 0ULL);
    undo.emplace_back([=] { cuMemAddressFree(address, bytes); });
    call(cuMemMap, purpose, address, bytes, std::size_t{0}, memory, 0ULL);
    undo.emplace_back([=] { cuMemUnmap(address, bytes); });
    std::vector<Access> access;
    for (const cuda::Device user : users) {
        access.push_back({{Location::kDevice, user}, Access::kReadWrite});
    }
    const Purpose reaching{purpose.doing, purpose.what, "access"};
    call(cuMemSetAccess, reaching, address, bytes, access.data(), access.size());
    return address;
}

// What `make` returns; if it throws, what it made is taken apart.
template <class Make>
auto made_by(Steps& undo, const Make& make) {
    try {
        return make();
    } catch (const Error&) {
        take_apart(undo);
        throw;
    }
}

SwitchedMemory switched(const std::vector<cuda::Device>& devices, const Purpose& purpose,
                        std::size_t bytes, Steps& undo) {
    MulticastProperties kind{static_cast<unsigned>(devices.size()), bytes, 0, 0};
    std::size_t granularity = 0;
    call(cuMulticastGetGranularity, purpose, &granularity, &kind, AllocationProperties::kMinimum);
    for (const cuda::Device device : devices) {
        granularity = std::lcm(granularity, granularity_of(memory_on(device), purpose));
    }
    kind.bytes = bytes = round_up(bytes, granularity);
    Allocation team = 0;
    call(cuMulticastCreate, purpose, &team, &kind);
    undo.emplace_back([team] { cuMemRelease(team); });
    // All of them, before memory is bound or mapped.
    for (const cuda::Device device : devices) call(cuMulticastAddDevice, purpose, team, device);
    SwitchedMemory made;
    for (const cuda::Device device : devices) {
        const auto part = memory_on(device);
        Allocation memory = 0;
        call(cuMemCreate, purpose, &memory, bytes, &part, 0ULL);
        undo.emplace_back([memory] { cuMemRelease(memory); });
        call(cuMulticastBindMem, purpose, team, std::size_t{0}, memory, std::size_t{0}, bytes, 0ULL);
        undo.emplace_back([=] { cuMulticastUnbind(team, device, 0, bytes); });
        made.parts.push_back(map(memory, bytes, granularity, devices, purpose, undo));
    }
    made.switched = map(team, bytes, granularity, devices, purpose, undo);
    return made;
}

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
    const LaunchTurn turn;
    {
        const ApartFromCaptures apart(contexts.front());
        made = made_by(*undo, [&] {
            return switched(numbers, {"letting a switch use memory of ", names}, bytes, *undo);
        });
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

Resource CudaDevice::allocate_shared(std::size_t bytes) {
    const auto doing = "allocating " + std::to_string(bytes) + " bytes for several processes on ";
    const Purpose purpose{doing, name_, "sharing"};
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    const auto kind = memory_on(device_, AllocationProperties::kFileDescriptor);
    const std::size_t granularity = granularity_of(kind, purpose);
    Allocation memory = 0;
    call(cuMemCreate, purpose, &memory, bytes = round_up(bytes, granularity), &kind, 0ULL);
    const auto made = mapped(memory, bytes, granularity, readers_, purpose);
    zero(made.address, bytes, doing + name_);
    return made;
}

Resource CudaDevice::attach(int descriptor, std::size_t bytes) {
    const Purpose purpose{"attaching another process's memory to ", name_, "sharing"};
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    const std::size_t granularity = granularity_of(memory_on(device_), purpose);
    Allocation memory = 0;
    call(cuMemImportFromShareableHandle, purpose, &memory,
         reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor)),
         AllocationProperties::kFileDescriptor);
    return mapped(memory, round_up(bytes, granularity), granularity, {device_}, purpose);
}

// The memory lasts as long as its mapping.
Resource CudaDevice::mapped(Allocation memory, std::size_t bytes, std::size_t granularity,
                            const std::vector<cuda::Device>& users, const Purpose& purpose) const {
    const auto undo = std::make_shared<Steps>();
    undo->emplace_back([memory] { cuMemRelease(memory); });
    const Pointer address = made_by(
        *undo, [&] { return map(memory, bytes, granularity, users, purpose, *undo); });
    return {address, until([undo] { take_apart(*undo); })};
}

int CudaDevice::export_memory(const Resource& memory) const {
    const Purpose purpose{"exporting memory of ", name_, "sharing"};
    const ApartFromCaptures apart(context_);
    Allocation allocation = 0;
    call(cuMemRetainAllocationHandle, purpose, &allocation, reinterpret_cast<void*>(memory.address));
    int made = -1;
    const Result result = cuMemExportToShareableHandle(
        &made, allocation, AllocationProperties::kFileDescriptor, 0ULL);
    cuMemRelease(allocation);
    if (result == Result::kSuccess) return made;
    throw Error(cuMemExportToShareableHandle.name, result, purpose);
}

}  // namespace sley
