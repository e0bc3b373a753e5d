// A GPU of this process: its memory, kernels, streams and launches.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "devices/cuda_driver.hpp"
#include "devices/device.hpp"

namespace sley {

// Memory of several devices, at an address of each for the kernels on all of them, and the address
// of all of them for a switch (NVLink SHARP).
struct SwitchedMemory {
    std::vector<cuda::Pointer> parts;
    cuda::Pointer switched = 0;
    std::shared_ptr<void> owner;
};

// The number of a device, and whether all devices access the memory where it is: memory of the host, and
// managed memory.
struct MemoryPlace {
    int ordinal;
    bool is_everywhere;
};

// Device number `ordinal` of those that the process sees, in its primary context, which other
// libraries use too. Functions leave the thread's context as it was; those that make or free
// something may be called while the thread captures a graph: they do it at once. They throw
// cuda::Error.
class CudaDevice : public Device {
public:
    explicit CudaDevice(int ordinal);

    // The number of devices that the process sees.
    static int count();
    // Onto how many queues the driver maps a device's streams, as the environment says when the first
    // device is opened: a later value has no effect.
    static int queues();
    // Of devices by their numbers, without their contexts: the multiprocessors; whether a line of
    // LL128 arrives as a whole.
    static int multiprocessors_of(int ordinal);
    static bool is_line_carried(int from, int to);
    // The CUDA that the driver supports: 13010 for 13.1.
    static int driver_version();

    int ordinal() const { return ordinal_; }
    const std::string& name() const override { return name_; }
    const cuda::Uuid& uuid() const { return uuid_; }
    int multiprocessors() const { return multiprocessors_; }
    std::pair<int, int> capability() const { return capability_; }
    cuda::Device device() const { return device_; }
    cuda::Context context() const override { return context_; }

    // Memory of cuMemAlloc, filled with zeros, aligned to 256 bytes.
    Resource allocate(std::size_t bytes) override;
    // Memory of which other processes get a descriptor, filled with zeros, for this device and those
    // that reach it.
    Resource allocate_shared(std::size_t bytes) override;
    // Pinned memory, at one address on the host and all devices: unified addressing guarantees
    // this for cuMemHostAlloc.
    Resource allocate_host(std::size_t bytes) override;
    Resource register_host(void* address, std::size_t bytes, std::shared_ptr<void> keeps) override;
    void write(cuda::Pointer to, const void* from, std::size_t bytes) override;
    void read(void* to, cuda::Pointer from, std::size_t bytes) override;

    void reach(Device& other) override;
    // Peer access covers what has a handle of CUDA IPC; for other memory the driver tells.
    bool lends(cuda::Pointer address, const Device& other) const override;
    // Where the memory of an address is; none if the driver doesn't know it.
    std::optional<MemoryPlace> place_of(cuda::Pointer address) const;
    bool has_multicast() const;
    // Memory of several devices behind a switch, filled with zeros, of at least `bytes` on each.
    static SwitchedMemory window(const std::vector<CudaDevice*>& devices, std::size_t bytes);

    int export_memory(const Resource& memory) const override;
    Resource attach(int descriptor, std::size_t bytes) override;
    // Not memory of a pool, nor an array in several pieces of mapped memory, as PyTorch's expandable
    // segments are.
    Shown show(cuda::Pointer address, std::size_t bytes) const override;
    Resource open(const std::string& handle) override;
    std::string identity() const override { return {uuid_.bytes, sizeof uuid_.bytes}; }
    // Links with native atomics do, which NVLink has. The driver tells nothing of links to devices that
    // this process doesn't see.
    bool carries_lines(const std::string& identity) const override;

    // code: a cubin or a fat binary. Kernels stay loaded until the process ends, since a CUDA graph
    // may hold them.
    cuda::Module load(const char* code) const;
    // cuModuleGetFunction also loads the code (CUDA programming guide, lazy loading); to load it at
    // the first launch would wait for running kernels, which may wait for this one.
    cuda::Function function(cuda::Module module, const std::string& name) const;
    int blocks_at_once(cuda::Function function, int threads) const;

    // A stream that is independent of the default stream, too.
    Resource stream() override;
    // Without a stream it waits also for those of other libraries.
    void synchronize(std::optional<Stream> stream) const override;
    Resource event() const override;
    // Throws Error "elsewhere" for a stream of another device.
    StreamState look(Stream stream, std::optional<std::uint64_t> known) const override;
    // Captured, they are nodes of the graph for an event outside it.
    void wait(Stream stream, Event event, bool is_captured) const override;
    void record(Event event, Stream stream, bool is_captured) const override;
    bool is_done(Event event) const override;
    void join(Event event) const override;
    double part(const Launch& launch) const override;
    bool is_captured(Stream stream) const;
    // Can be captured.
    void launch(const Launch& launch, Stream stream) const override;

private:
    // The device with an identity, this one before others; none if the process doesn't see it.
    std::optional<cuda::Device> device_with(const std::string& identity) const;
    int attribute(int which) const;
    void zero(cuda::Pointer address, std::size_t bytes, const std::string& doing);
    // Waits for a stream; the context is current.
    void finish(cuda::Stream stream) const;
    Resource mapped(cuda::Allocation memory, std::size_t bytes, std::size_t granularity,
                    const std::vector<cuda::Device>& users, const cuda::Purpose& purpose) const;
    // Runs `free` in the device's context when the last owner goes.
    std::shared_ptr<void> until(std::function<void()> free) const;

    int ordinal_;
    cuda::Device device_ = 0;
    std::string name_;
    cuda::Uuid uuid_{};
    int multiprocessors_ = 0;
    std::pair<int, int> capability_;
    cuda::Context context_ = 0;
    cuda::Stream copies_ = 0;  // as the context, it lasts until the process ends
    std::vector<cuda::Device> readers_;  // this device and those that reach it
};

}  // namespace sley
