#include "devices/cuda_device.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "devices/deferred_free.hpp"

namespace sley {
namespace {

using namespace cuda;

constexpr unsigned kMapped = kPortable | kDeviceMap;
// CUDA programming guide, environment variables: CUDA_DEVICE_MAX_CONNECTIONS.
constexpr int kQueues = 8, kMostQueues = 32;

std::string bytes_of(std::size_t bytes) { return std::to_string(bytes) + " bytes"; }

std::string counted(unsigned number, const char* noun) {
    return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

std::string numbered(int ordinal) { return "device " + std::to_string(ordinal); }

cuda::Device device_at(int ordinal, const std::string& doing) {
    cuda::Device device = 0;
    call(cuDeviceGet, {doing}, &device, ordinal);
    return device;
}

bool has_native_atomics(cuda::Device from, cuda::Device to, const std::string& name) {
    int value = 0;
    call(cuDeviceGetP2PAttribute, {"asking for the link from " + name + " to another device"},
         &value, kNativeAtomics, from, to);
    return value != 0;
}

}  // namespace

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
    queues();
    const auto opening = "opening " + numbered(ordinal);
    device_ = device_at(ordinal, opening);
    std::array<char, 256> name{};
    call(cuDeviceGetName, {"asking for its name"}, name.data(), static_cast<int>(name.size()),
         device_);
    name_ = std::string(name.data()) + " (device " + std::to_string(ordinal) + ")";
    call(cuDeviceGetUuid, {"asking for its identity"}, &uuid_, device_);
    multiprocessors_ = attribute(kMultiprocessors);
    capability_ = {attribute(kCapabilityMajor), attribute(kCapabilityMinor)};
    readers_ = {device_};
    call(cuDevicePrimaryCtxRetain, {opening}, &context_, device_);
    const ApartFromCaptures apart(context_);
    call(cuStreamCreate, {"making a stream on ", name_}, &copies_, kNonBlocking);
}

int CudaDevice::count() {
    int number = 0;
    call(cuDeviceGetCount, {"counting the devices"}, &number);
    return number;
}

int CudaDevice::queues() {
    static const int number = [] {
        const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
        const int given = text == nullptr ? 0 : std::atoi(text);
        return given > 0 ? std::min(given, kMostQueues) : kQueues;
    }();
    return number;
}

int CudaDevice::multiprocessors_of(int ordinal) {
    const auto doing = "looking at " + numbered(ordinal);
    int value = 0;
    call(cuDeviceGetAttribute, {doing}, &value, kMultiprocessors, device_at(ordinal, doing));
    return value;
}

bool CudaDevice::is_line_carried(int from, int to) {
    const auto name = numbered(from);
    const auto doing = "looking at " + name;
    return has_native_atomics(device_at(from, doing), device_at(to, doing), name);
}

int CudaDevice::driver_version() {
    int version = 0;
    call(cuDriverGetVersion, {"asking for the driver's version"}, &version);
    return version;
}

Resource CudaDevice::allocate(std::size_t bytes) {
    const auto doing = "allocating " + bytes_of(bytes) + " on " + name_;
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    Pointer address = 0;
    call(cuMemAlloc, {doing}, &address, bytes);
    Resource made{address, until([address] { cuMemFree(address); })};
    zero(address, bytes, doing);
    return made;
}

Resource CudaDevice::allocate_host(std::size_t bytes) {
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    void* address = nullptr;
    // A size of 0 is refused.
    call(cuMemHostAlloc, {"allocating " + bytes_of(bytes) + " of the host's memory"}, &address,
         bytes == 0 ? 1 : bytes, kMapped);
    std::memset(address, 0, bytes);
    return {reinterpret_cast<Pointer>(address), until([address] { cuMemFreeHost(address); })};
}

Resource CudaDevice::register_host(void* address, std::size_t bytes, std::shared_ptr<void> keeps) {
    const auto doing = "letting " + name_ + " use memory that processes share";
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    call(cuMemHostRegister, {doing, "", "sharing"}, address, bytes, kMapped);
    Resource made;
    made.owner = until([address, keeps = std::move(keeps)] { cuMemHostUnregister(address); });
    call(cuMemHostGetDevicePointer, {doing}, &made.address, address, 0U);
    return made;
}

void CudaDevice::write(Pointer to, const void* from, std::size_t bytes) {
    const ApartFromCaptures apart(context_);
    call(cuMemcpyHtoDAsync, {"writing " + bytes_of(bytes) + " to ", name_}, to, from, bytes,
         copies_);
    finish(copies_);
}

void CudaDevice::read(void* to, Pointer from, std::size_t bytes) {
    const ApartFromCaptures apart(context_);
    call(cuMemcpyDtoHAsync, {"reading " + bytes_of(bytes) + " from ", name_}, to, from, bytes,
         copies_);
    finish(copies_);
}

void CudaDevice::reach(sley::Device& device) {
    auto& other = dynamic_cast<CudaDevice&>(device);
    const LaunchTurn turn;
    auto& readers = other.readers_;
    if (std::find(readers.begin(), readers.end(), device_) != readers.end()) return;
    const ApartFromCaptures apart(context_);
    const Result result = cuCtxEnablePeerAccess(other.context_, 0);
    if (result != Result::kSuccess && result != Result::kPeerAccessAlreadyEnabled) {
        throw Error(cuCtxEnablePeerAccess.name, result,
                    {"letting " + name_ + " reach " + other.name_});
    }
    readers.push_back(device_);
}

std::optional<cuda::Device> CudaDevice::device_with(const std::string& wanted) const {
    if (wanted == identity()) return device_;
    for (int ordinal = 0, number = count(); ordinal < number; ++ordinal) {
        const auto doing = "looking at " + numbered(ordinal);
        const auto device = device_at(ordinal, doing);
        Uuid found{};
        call(cuDeviceGetUuid, {doing}, &found, device);
        if (wanted == std::string(found.bytes, sizeof found.bytes)) return device;
    }
    return {};
}

bool CudaDevice::carries_lines(const std::string& identity) const {
    const auto other = device_with(identity);
    return other && (*other == device_ || has_native_atomics(device_, *other, name_));
}

bool CudaDevice::lends(Pointer address, const sley::Device& other) const {
    const Current current(other.context());
    for (const int which : {kIpcCapable, kAccessFlags}) {
        std::uint64_t value = 0;  // wide enough for each attribute
        call(cuPointerGetAttribute, {"asking for memory of ", name_}, static_cast<void*>(&value),
             which, address);
        if (value != 0) return true;
    }
    return false;
}

Shown CudaDevice::show(Pointer address, std::size_t bytes) const {
    const ApartFromCaptures apart(context_);
    Shown whole{address, bytes};
    std::uint64_t is_legacy = 0;  // wide enough for a bool
    if (cuMemGetAddressRange(&whole.address, &whole.bytes, address) != Result::kSuccess ||
        address + bytes > whole.address + whole.bytes ||
        cuPointerGetAttribute(&is_legacy, kIpcCapable, address) != Result::kSuccess) {
        return {address, bytes};
    }
    cuPointerGetAttribute(&whole.id, kBufferId, address);
    IpcHandle handle{};
    if (is_legacy == 0) {
        try {
            whole.descriptor = export_memory({whole.address, nullptr});
        } catch (const Error&) {  // of a pool, or made without descriptors
            return {address, bytes};
        }
    } else if (cuIpcGetMemHandle(&handle, whole.address) == Result::kSuccess) {
        whole.handle.assign(handle.bytes, sizeof handle.bytes);
    }
    return whole;
}

Resource CudaDevice::open(const std::string& handle) {
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    IpcHandle given{};
    handle.copy(given.bytes, sizeof given.bytes);
    Pointer address = 0;
    call(cuIpcOpenMemHandle, {"attaching another process's memory to ", name_, "sharing"}, &address,
         given, kLazyPeerAccess);
    return {address, until([address] { cuIpcCloseMemHandle(address); })};
}

// Each call of a program asks it, so it asks the driver once.
std::optional<MemoryPlace> CudaDevice::place_of(Pointer address) const {
    const Current current(context_);
    int which[] = {kMemoryType, kIsManaged, kDeviceOrdinal};
    std::uint64_t kind = 0, is_managed = 0;  // wide enough, whatever the driver writes
    int ordinal = 0;
    void* values[] = {&kind, &is_managed, &ordinal};
    const Result result = cuPointerGetAttributes(3U, which, values, address);
    // Of unknown addresses it tells that they are of no type.
    if (result != Result::kSuccess || kind == 0) return {};
    return MemoryPlace{ordinal, kind == kHostMemory || is_managed != 0};
}

bool CudaDevice::has_multicast() const { return attribute(kMulticastSupported) != 0; }

Module CudaDevice::load(const char* code) const {
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    Module module = 0;
    call(cuModuleLoadData, {"loading kernels on ", name_}, &module, code);
    return module;
}

Function CudaDevice::function(Module module, const std::string& name) const {
    const LaunchTurn turn;
    const ApartFromCaptures apart(context_);
    Function function = 0;
    call(cuModuleGetFunction, {"looking for the kernel ", name, "kernel"}, &function, module,
         name.c_str());
    return function;
}

int CudaDevice::blocks_at_once(Function function, int threads) const {
    const Current current(context_);
    int blocks = 0;
    call(cuOccupancyMaxActiveBlocksPerMultiprocessor,
         {"counting the blocks that " + name_ + " holds"}, &blocks, function, threads,
         std::size_t{0});
    return blocks * multiprocessors_;
}

Resource CudaDevice::stream() {
    const ApartFromCaptures apart(context_);
    Stream stream = 0;
    call(cuStreamCreate, {"making a stream on ", name_}, &stream, kNonBlocking);
    return {stream, until([stream] { cuStreamDestroy(stream); })};
}

Resource CudaDevice::event() const {
    const ApartFromCaptures apart(context_);
    Event event = 0;
    call(cuEventCreate, {"making an event"}, &event, kDisableTiming);
    return {event, until([event] { cuEventDestroy(event); })};
}

StreamState CudaDevice::look(Stream stream, std::optional<std::uint64_t> known) const {
    const Purpose purpose{"looking at a stream of ", name_, "stream"};
    StreamState state;
    CaptureStatus status{};
    call(cuStreamGetCaptureInfo, purpose, stream, &status, &state.capture, nullptr, nullptr,
         nullptr);
    state.is_captured = status != CaptureStatus::kNone;
    if (state.is_captured) return state;  // further queries could invalidate the capture
    call(cuStreamGetId, purpose, stream, &state.number);
    if (state.number == known) return state;
    Context own = 0;
    call(cuStreamGetCtx, purpose, stream, &own);
    if (own == context_) return state;
    cuda::Device other = 0;
    const Current others(own);
    call(cuCtxGetDevice, purpose, &other);
    if (other != device_) throw Error(cuStreamGetCtx.name, Result::kElsewhere, {name_});
    return state;
}

void CudaDevice::wait(Stream stream, Event event, bool is_captured) const {
    call(cuStreamWaitEvent, {"letting a call wait for the one before", "", "stream"}, stream, event,
         is_captured ? kExternal : 0U);
}

void CudaDevice::record(Event event, Stream stream, bool is_captured) const {
    call(cuEventRecordWithFlags, {"setting an event behind a call", "", "stream"}, event, stream,
         is_captured ? kExternal : 0U);
}

bool CudaDevice::is_done(Event event) const {
    try {
        const ApartFromCaptures apart(context_);
        return cuEventQuery(event) != Result::kNotReady;
    } catch (const Error&) {  // the device has failed: nothing runs
        return true;
    }
}

void CudaDevice::join(Event event) const {
    const ApartFromCaptures apart(context_);
    call(cuEventSynchronize, {"waiting for calls on ", name_}, event);
}

double CudaDevice::part(const Launch& launch) const {
    const int room = blocks_at_once(launch.function, static_cast<int>(launch.threads));
    return static_cast<double>(launch.blocks) / std::max(room, 1);
}

bool CudaDevice::is_captured(Stream stream) const {
    const Current current(context_);
    CaptureStatus status{};
    std::uint64_t number = 0;
    call(cuStreamGetCaptureInfo, {"looking at a stream of ", name_, "stream"}, stream, &status,
         &number, nullptr, nullptr, nullptr);
    return status != CaptureStatus::kNone;
}

void CudaDevice::launch(const Launch& launch, Stream stream) const {
    LaunchAttribute cooperative{};
    cooperative.id = LaunchAttribute::kCooperative;
    cooperative.value.cooperative = 1;
    const LaunchConfig config{{launch.blocks, 1, 1}, {launch.threads, 1, 1}, 0,
                              stream,                &cooperative,           launch.together};
    void* arguments[] = {const_cast<char*>(launch.call.data())};
    const Result result = cuLaunchKernelEx(&config, launch.function, arguments, nullptr);
    if (result == Result::kSuccess) return;
    throw Error(cuLaunchKernelEx.name, result,
                {"starting " + launch.name + " with " + counted(launch.blocks, "block") + " of " +
                     counted(launch.threads, "thread") + " on ",
                 name_, "stream"});
}

void CudaDevice::synchronize(std::optional<Stream> stream) const {
    const Current current(context_);
    if (stream) {
        finish(*stream);
    } else {
        call(cuCtxSynchronize, {"waiting for ", name_});
    }
    free_released();
}

int CudaDevice::attribute(int which) const {
    int value = 0;
    call(cuDeviceGetAttribute,
         {"asking device " + std::to_string(ordinal_) + " for its attributes"}, &value, which,
         device_);
    return value;
}

void CudaDevice::zero(Pointer address, std::size_t bytes, const std::string& doing) {
    call(cuMemsetD8Async, {doing}, address, static_cast<unsigned char>(0), bytes,
         copies_);
    finish(copies_);
}

void CudaDevice::finish(Stream stream) const {
    call(cuStreamSynchronize, {"waiting for ", name_, "stream"}, stream);
}

std::shared_ptr<void> CudaDevice::until(std::function<void()> free) const {
    const auto freed = [context = context_, free = std::move(free)] {
        try {
            const ApartFromCaptures apart(context);
            free();
        } catch (const Error&) {  // see Resource
        }
    };
    return {nullptr, [freed](void*) { release(freed); }};
}

}  // namespace sley
