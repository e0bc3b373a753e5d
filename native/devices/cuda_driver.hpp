// NVIDIA's driver, loaded at run time: its functions, by their names, and its errors.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>

#include "devices/cuda_abi.hpp"

namespace sley::cuda {

// What a call of the driver is for, in words for messages: `doing` and then `what`. subject: what an
// invalid argument would be: "stream", "sharing" (memory that can't be shared), "kernel"; or "".
struct Purpose {
    std::string_view doing;
    std::string_view what = {};
    const char* subject = "";
};

// A call of the driver that failed. name, words: the driver's, of the error. Two names are this
// program's: "missing" if the driver lacks the function, and "elsewhere" for a stream of another
// device than `doing` names.
struct Error : std::runtime_error {
    Error(const char* function, Result code, const Purpose& purpose);

    std::string function, name, words, doing;
    const char* subject;
};

// A function of the driver; nullptr if the driver lacks it.
void* find(const char* name);

template <class... Arguments>
class Entry {
public:
    constexpr explicit Entry(const char* name) : name(name) {}

    // It is looked for when it is first used: older drivers lack functions that few programs need.
    Result operator()(Arguments... arguments) {
        auto* function = function_.load(std::memory_order_relaxed);
        if (function == nullptr) {
            function = reinterpret_cast<Result (*)(Arguments...)>(find(name));
            if (function == nullptr) return Result::kMissing;
            function_.store(function, std::memory_order_relaxed);
        }
        return function(arguments...);
    }

    const char* const name;

private:
    std::atomic<Result (*)(Arguments...)> function_{nullptr};
};

inline Entry<unsigned> cuInit{"cuInit"};
inline Entry<int*> cuDriverGetVersion{"cuDriverGetVersion"};
inline Entry<Result, const char**> cuGetErrorName{"cuGetErrorName"};
inline Entry<Result, const char**> cuGetErrorString{"cuGetErrorString"};
inline Entry<int*> cuDeviceGetCount{"cuDeviceGetCount"};
inline Entry<Device*, int> cuDeviceGet{"cuDeviceGet"};
inline Entry<char*, int, Device> cuDeviceGetName{"cuDeviceGetName"};
inline Entry<Uuid*, Device> cuDeviceGetUuid{"cuDeviceGetUuid"};
inline Entry<int*, int, Device> cuDeviceGetAttribute{"cuDeviceGetAttribute"};
inline Entry<int*, int, Device, Device> cuDeviceGetP2PAttribute{"cuDeviceGetP2PAttribute"};
inline Entry<Context*, Device> cuDevicePrimaryCtxRetain{"cuDevicePrimaryCtxRetain"};
inline Entry<Context> cuCtxPushCurrent{"cuCtxPushCurrent"};
inline Entry<Context*> cuCtxPopCurrent{"cuCtxPopCurrent"};
inline Entry<Device*> cuCtxGetDevice{"cuCtxGetDevice"};
inline Entry<> cuCtxSynchronize{"cuCtxSynchronize"};
inline Entry<Context, unsigned> cuCtxEnablePeerAccess{"cuCtxEnablePeerAccess"};
inline Entry<Pointer*, std::size_t> cuMemAlloc{"cuMemAlloc"};
inline Entry<Pointer> cuMemFree{"cuMemFree"};
inline Entry<void**, std::size_t, unsigned> cuMemHostAlloc{"cuMemHostAlloc"};
inline Entry<void*> cuMemFreeHost{"cuMemFreeHost"};
inline Entry<void*, std::size_t, unsigned> cuMemHostRegister{"cuMemHostRegister"};
inline Entry<void*> cuMemHostUnregister{"cuMemHostUnregister"};
inline Entry<Pointer*, void*, unsigned> cuMemHostGetDevicePointer{"cuMemHostGetDevicePointer"};
inline Entry<void*, int, Pointer> cuPointerGetAttribute{"cuPointerGetAttribute"};
inline Entry<unsigned, int*, void**, Pointer> cuPointerGetAttributes{"cuPointerGetAttributes"};
inline Entry<Pointer*, std::size_t*, Pointer> cuMemGetAddressRange{"cuMemGetAddressRange"};
inline Entry<IpcHandle*, Pointer> cuIpcGetMemHandle{"cuIpcGetMemHandle"};
inline Entry<Pointer*, IpcHandle, unsigned> cuIpcOpenMemHandle{"cuIpcOpenMemHandle"};
inline Entry<Pointer> cuIpcCloseMemHandle{"cuIpcCloseMemHandle"};
inline Entry<Pointer, unsigned char, std::size_t, Stream> cuMemsetD8Async{"cuMemsetD8Async"};
inline Entry<Pointer, const void*, std::size_t, Stream> cuMemcpyHtoDAsync{"cuMemcpyHtoDAsync"};
inline Entry<void*, Pointer, std::size_t, Stream> cuMemcpyDtoHAsync{"cuMemcpyDtoHAsync"};
inline Entry<std::size_t*, const AllocationProperties*, int> cuMemGetAllocationGranularity{
    "cuMemGetAllocationGranularity"};
inline Entry<Allocation*, std::size_t, const AllocationProperties*, unsigned long long> cuMemCreate{
    "cuMemCreate"};
inline Entry<Allocation> cuMemRelease{"cuMemRelease"};
inline Entry<Allocation*, void*> cuMemRetainAllocationHandle{"cuMemRetainAllocationHandle"};
inline Entry<void*, Allocation, int, unsigned long long> cuMemExportToShareableHandle{
    "cuMemExportToShareableHandle"};
inline Entry<Allocation*, void*, int> cuMemImportFromShareableHandle{
    "cuMemImportFromShareableHandle"};
inline Entry<Pointer*, std::size_t, std::size_t, Pointer, unsigned long long> cuMemAddressReserve{
    "cuMemAddressReserve"};
inline Entry<Pointer, std::size_t> cuMemAddressFree{"cuMemAddressFree"};
inline Entry<Pointer, std::size_t, std::size_t, Allocation, unsigned long long> cuMemMap{
    "cuMemMap"};
inline Entry<Pointer, std::size_t> cuMemUnmap{"cuMemUnmap"};
inline Entry<Pointer, std::size_t, const Access*, std::size_t> cuMemSetAccess{"cuMemSetAccess"};
inline Entry<std::size_t*, const MulticastProperties*, int> cuMulticastGetGranularity{
    "cuMulticastGetGranularity"};
inline Entry<Allocation*, const MulticastProperties*> cuMulticastCreate{"cuMulticastCreate"};
inline Entry<Allocation, Device> cuMulticastAddDevice{"cuMulticastAddDevice"};
inline Entry<Allocation, std::size_t, Allocation, std::size_t, std::size_t, unsigned long long>
    cuMulticastBindMem{"cuMulticastBindMem"};
inline Entry<Allocation, Device, std::size_t, std::size_t> cuMulticastUnbind{"cuMulticastUnbind"};
inline Entry<Module*, const void*> cuModuleLoadData{"cuModuleLoadData"};
inline Entry<Function*, Module, const char*> cuModuleGetFunction{"cuModuleGetFunction"};
inline Entry<int*, Function, int, std::size_t> cuOccupancyMaxActiveBlocksPerMultiprocessor{
    "cuOccupancyMaxActiveBlocksPerMultiprocessor"};
inline Entry<Stream*, unsigned> cuStreamCreate{"cuStreamCreate"};
inline Entry<Stream> cuStreamDestroy{"cuStreamDestroy"};
inline Entry<Stream> cuStreamSynchronize{"cuStreamSynchronize"};
inline Entry<Stream, CaptureStatus*, std::uint64_t*, void*, void*, void*> cuStreamGetCaptureInfo{
    "cuStreamGetCaptureInfo"};
inline Entry<Stream, std::uint64_t*> cuStreamGetId{"cuStreamGetId"};
inline Entry<Stream, Context*> cuStreamGetCtx{"cuStreamGetCtx"};
inline Entry<CaptureMode*> cuThreadExchangeStreamCaptureMode{"cuThreadExchangeStreamCaptureMode"};
inline Entry<Event*, unsigned> cuEventCreate{"cuEventCreate"};
inline Entry<Event> cuEventDestroy{"cuEventDestroy"};
inline Entry<Event> cuEventQuery{"cuEventQuery"};
inline Entry<Event> cuEventSynchronize{"cuEventSynchronize"};
inline Entry<Event, Stream, unsigned> cuEventRecordWithFlags{"cuEventRecordWithFlags"};
inline Entry<Stream, Event, unsigned> cuStreamWaitEvent{"cuStreamWaitEvent"};
inline Entry<const LaunchConfig*, Function, void**, void**> cuLaunchKernelEx{"cuLaunchKernelEx"};

// Calls the driver; throws Error if that fails.
template <class... Arguments, class... Given>
void call(Entry<Arguments...>& entry, const Purpose& purpose, Given... given) {
    const Result result = entry(given...);
    if (result != Result::kSuccess) throw Error(entry.name, result, purpose);
}

// Loads the driver and starts it. Throws Refusal (K501) if there is none, Error if it doesn't start.
void start();

// Makes a context current in this thread, and the caller's again.
class Current {
public:
    explicit Current(Context context) { to(context); }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() { leave(); }

    // Makes another one current instead.
    void to(Context context) {
        if (context == context_) return;
        leave();
        call(cuCtxPushCurrent, {"turning to the device"}, context);
        context_ = context;
    }

private:
    void leave() {
        if (context_ != 0) cuCtxPopCurrent(&context_);
        context_ = 0;
    }

    Context context_ = 0;
};

// As Current, and allows calls that can't be captured (allocations) during the caller's capture:
// they run at once, outside the graph.
class ApartFromCaptures : Current {
public:
    explicit ApartFromCaptures(Context context) : Current(context) {
        call(cuThreadExchangeStreamCaptureMode, {"leaving the capture's rules"}, &mode_);
    }
    ~ApartFromCaptures() { cuThreadExchangeStreamCaptureMode(&mode_); }

private:
    CaptureMode mode_ = CaptureMode::kRelaxed;  // then the caller's
};

}  // namespace sley::cuda
