// A stand-in for NVIDIA's driver, libcuda.so.1, for machines without a GPU.
//
// What it is: the entry points that sley.engine.devices.cuda calls, over the host's memory, with the
// errors that the CUDA driver API documents, so that each line of the host's side runs in each test
// run.
// Devices are numbers; their memory is a file without a name, mapped; a stream is a thread that
// works on its queue; a kernel is a function of a shared object of its module.
//
// What it isn't: a GPU. No machine code runs: any module loads, and has every kernel except one
// called "missing". A module whose image is "library SIZE BYTES", a line, and then the bytes of a
// shared object, is that object: its functions run as kernels, with an argument of SIZE bytes. It
// says nothing about speed, about CUDA's memory model, or about what NVIDIA's driver does where its
// documentation is silent. Behind the address of a multicast object, every 256 bytes, is the table
// that the kernels for CPUs take for a switch.
//
// Calls that load, allocate, free, map or register wait, as NVIDIA's driver may, until nothing runs
// on any device; until then other threads launch nothing. One that waits longer than patience_ms has
// hung: it is noted by its name, and goes on.
//
// Tests steer it by the functions at the end, and by the variable SLEY_FAKE, which has settings to begin
// with: "devices=4 multiprocessors=8". Entry points that it lacks are unknown to
// cuGetProcAddress, as they are to a driver that is too old.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum Result {  // cuda.h: CUresult
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    CANNOT_MAP = 205,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_ISOLATION = 905,
};

struct Words {
    const char *name, *meaning;
};
const std::map<int, Words> WORDS = {
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {CANNOT_MAP, {"CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"}},
    {209, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"}},
    {PEER_ACCESS_UNSUPPORTED, {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"}},
    {INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {702, {"CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"}},
    {711, {"CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"}},
    {COOPERATIVE_LAUNCH_TOO_LARGE,
     {"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"}},
    {NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {802, {"CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"}},
    {803, {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "unsupported display driver / CUDA combination"}},
    {STREAM_CAPTURE_UNSUPPORTED,
     {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {STREAM_CAPTURE_ISOLATION,
     {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work"}},
};

constexpr int RELAXED = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr std::uintptr_t LEGACY_STREAM = 1;

using Kernel = void (*)(const void* call, int blocks);

// A device's multiprocessors, as room for blocks.
struct Room {
    std::mutex lock;
    std::condition_variable changed;
    unsigned taken = 0;

    // Blocks of a cooperative launch come together; others one by one, and wait for the rest of their
    // launch, which here begins when all are there, or as many as a device holds. Returns how many.
    unsigned take(unsigned wanted, unsigned most, bool together) {
        std::unique_lock<std::mutex> held(lock);
        wanted = std::min(wanted, most);
        const unsigned each = together ? wanted : 1;
        for (unsigned had = 0; had < wanted; had += each) {
            changed.wait(held, [=] { return taken + each <= most; });
            taken += each;
        }
        return wanted;
    }
    void leave(unsigned number) {
        std::lock_guard<std::mutex> held(lock);
        taken -= number;
        changed.notify_all();
    }
};

struct Context {
    int device;
    std::set<Context*> peers;
    Room room;
};

// What a graph starts, made anew at each launch of the graph.
using Node = std::function<std::function<void()>()>;

std::uint64_t last_number = 0;  // of streams, captures and allocations

struct Stream;
struct Graph {
    Stream* origin;  // a launch's stream takes its place; the others run their work themselves
    std::vector<std::pair<Stream*, Node>> work;
};

struct Stream {
    Context* context;
    std::uint64_t number = ++last_number;
    std::uint64_t capture = 0;     // its number while it is captured
    std::shared_ptr<Graph> graph;  // of the capture
    bool busy = false;
    std::deque<std::function<void()>> queue;
    std::mutex lock;
    std::condition_variable changed;

    explicit Stream(Context* owner) : context(owner) {
        std::thread([this] { work(); }).detach();
    }
    void work() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return !queue.empty(); });
            std::function<void()> next = std::move(queue.front());
            queue.pop_front();
            busy = true;
            held.unlock();
            next();
            held.lock();
            busy = false;
            changed.notify_all();
        }
    }
    void capture_node(Node node) { graph->work.emplace_back(this, std::move(node)); }
    void start(std::function<void()> what) {
        std::lock_guard<std::mutex> held(lock);
        queue.push_back(std::move(what));
        changed.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return queue.empty() && !busy; });
    }
    bool wait_until(std::chrono::steady_clock::time_point end) {
        std::unique_lock<std::mutex> held(lock);
        return changed.wait_until(held, end, [this] { return queue.empty() && !busy; });
    }
};

struct Allocation {
    int device;  // -1: the host's
    std::size_t bytes;
    int file;
    bool is_pooled;  // of a pool, or mapped: peer access doesn't cover it
    std::uint64_t id = ++last_number;
};

// Of cuMemCreate, or a multicast object, which has its devices, and the memory bound on each.
struct Handle {
    std::size_t bytes;
    int device, file;  // -1 of a multicast object
    unsigned devices;
    std::set<int> added;
    std::map<int, std::uint64_t> bound;
    int uses;  // mappings, and bindings to multicast objects
    bool is_released;
    bool is_exportable = false;
};

struct Range {  // reserved addresses
    std::size_t bytes;
    std::uint64_t handle;  // mapped there; 0: none
    std::set<int> access;
};

struct Registered {
    Kernel kernel = nullptr;
    std::size_t call_bytes = 0;
};

struct Attribute {  // CUlaunchAttribute
    int id;
    char padding[4];
    int value[16];
};

struct LaunchConfig {  // CUlaunchConfig
    unsigned grid[3], block[3], shared_bytes;
    Stream* stream;
    Attribute* attributes;
    unsigned attribute_count;
};

using Held = std::lock_guard<std::recursive_mutex>;

std::recursive_mutex lock;
std::map<std::string, long long> settings = {
    {"devices", 2},          {"driver_version", 13010}, {"memory_bytes", 1 << 26},
    {"multiprocessors", 4},  {"blocks_each", 2},        {"peer_access", 1},
    {"capability", 90},
    {"native_atomics", 1},   // of the links between devices
    {"multicast", 1},        // of the devices' switch
    {"patience_ms", 10000},  // of a call that waits for kernels; 0: none waits
    {"pooled", 0},           // whether memory is from now on allocated as by a pool
    {"pool_access", 0},      // of devices to another's pools
    {"launches", 0},  // so far
    {"endless", -1},  // the launch, from 0, after which none ends
    {"lame", -1},     // the launch, from 0, after which each lacks its last block
    {"lost", -1},     // the launch, from 0, after which each fails, and the device with it
};
std::map<std::string, int> failures;
std::map<std::string, Registered> kernels;
std::map<std::uintptr_t, Allocation> allocations;
std::map<std::uint64_t, Handle> handles;
std::map<std::uintptr_t, Range> ranges;
std::set<Stream*> streams;
std::set<Stream*> destroyed;  // their work is still done, and waited for
std::vector<std::string> journal;
std::string hangs;  // names of calls
std::mutex waiting;  // held by a call that waits for kernels, and taken by launches
Context contexts[16];
std::map<Context*, Stream*> default_streams;
int captures = 0;
bool lost = false;  // the device, by a kernel that failed: the process can use it no more
thread_local std::vector<Context*> current;
thread_local int capture_mode = 0;

// What a capture, of any thread, forbids: calls that a graph can't hold, but for threads that
// exchanged their mode.
bool forbidden() { return captures > 0 && capture_mode != RELAXED; }

const std::set<std::string> WAITING = {
    "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister",
    "cuMemHostUnregister", "cuMemCreate", "cuMemSetAccess", "cuMemUnmap", "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle", "cuModuleLoadData", "cuModuleGetFunction", "cuCtxEnablePeerAccess",
};

void wait_for_all(const std::string& name) {
    std::vector<Stream*> all;
    std::chrono::milliseconds patience;
    {
        Held held(lock);
        patience = std::chrono::milliseconds(settings["patience_ms"]);
        all.assign(streams.begin(), streams.end());
        all.insert(all.end(), destroyed.begin(), destroyed.end());
        for (const auto& [_, stream] : default_streams) all.push_back(stream);
    }
    if (!patience.count() || forbidden()) return;
    const auto end = std::chrono::steady_clock::now() + patience;
    std::lock_guard<std::mutex> alone(waiting);
    for (Stream* stream : all) {
        if (stream->wait_until(end)) continue;
        Held held(lock);
        hangs += name + " ";
        return;
    }
}

// The calls of an entry point: each is noted, and fails if a test said so.
template <class Signature, Signature Body>
struct Entry;
template <class... Arguments, int (*Body)(Arguments...)>
struct Entry<int (*)(Arguments...), Body> {
    static inline std::string name;
    static inline bool waits = false;
    static int call(Arguments... arguments) {
        if (waits) wait_for_all(name);
        {
            Held held(lock);
            journal.push_back(name);
            auto failure = failures.find(name);
            if (failure != failures.end()) return failure->second;
            if (lost && name.rfind("cuGetError", 0)) return ILLEGAL_ADDRESS;
        }
        return Body(arguments...);
    }
};

Stream* found(Stream* stream) {
    if (current.empty()) return nullptr;
    if (reinterpret_cast<std::uintptr_t>(stream) <= LEGACY_STREAM) {
        Stream*& made = default_streams[current.back()];
        if (!made) made = new Stream(current.back());
        return made;
    }
    return streams.count(stream) && stream->context == current.back() ? stream : nullptr;
}

std::map<std::uintptr_t, Allocation>::iterator holding(std::uintptr_t address) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return allocations.end();
    --after;
    return address < after->first + after->second.bytes ? after : allocations.end();
}

int mapped(std::uintptr_t* address, int device, std::size_t bytes, int file) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    *address = reinterpret_cast<std::uintptr_t>(memory);
    allocations[*address] = {device, bytes, file, settings["pooled"] != 0};
    return SUCCESS;
}

long long used(int device) {
    long long bytes = 0;
    for (const auto& [_, allocation] : allocations)
        if (allocation.device == device) bytes += allocation.bytes;
    for (const auto& [_, handle] : handles)
        if (handle.file >= 0 && handle.device == device) bytes += handle.bytes;
    return bytes;
}

int allocated(std::uintptr_t* address, int device, std::size_t bytes) {
    if (forbidden()) return STREAM_CAPTURE_UNSUPPORTED;
    long long after = used(device) + static_cast<long long>(bytes);
    if (after > settings["memory_bytes"]) return OUT_OF_MEMORY;
    int file = memfd_create("device", 0);
    if (ftruncate(file, bytes)) return OUT_OF_MEMORY;
    int result = mapped(address, device, bytes, file);
    if (!result) std::memset(reinterpret_cast<void*>(*address), 0xEE, bytes);
    return result;
}

int released(std::uintptr_t address) {
    Held held(lock);
    if (forbidden()) return STREAM_CAPTURE_UNSUPPORTED;
    auto allocation = allocations.find(address);
    if (allocation == allocations.end()) return INVALID_VALUE;
    munmap(reinterpret_cast<void*>(address), allocation->second.bytes);
    close(allocation->second.file);
    allocations.erase(allocation);
    return SUCCESS;
}

// The driver

// With CUDA_VISIBLE_DEVICES=N the process sees only that device, as its number 0.
int first_visible = 0;

int cuInit(unsigned) {
    static const bool is_set = [] {
        const char* given = std::getenv("SLEY_FAKE");
        std::istringstream words(given ? given : "");
        for (std::string name, value; std::getline(words >> std::ws, name, '=') && words >> value;)
            settings[name] = std::stoll(value);
        return true;
    }();
    (void)is_set;
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
        first_visible = std::atoi(visible);
        settings["devices"] = 1;
    }
    return settings["devices"] ? SUCCESS : NO_DEVICE;
}

int cuDriverGetVersion(int* version) {
    *version = settings["driver_version"];
    return SUCCESS;
}

int cuGetErrorString(int error, const char** words) {
    auto known = WORDS.find(error);
    *words = known == WORDS.end() ? nullptr : known->second.meaning;
    return *words ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorName(int error, const char** name) {
    auto known = WORDS.find(error);
    *name = known == WORDS.end() ? nullptr : known->second.name;
    return *name ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetCount(int* count) {
    *count = settings["devices"];
    return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < settings["devices"] ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int length, int) {
    std::snprintf(name, length, "Stand-in");
    return SUCCESS;
}

int cuDeviceGetUuid(unsigned char* uuid, int device) {
    std::memset(uuid, 0x11 * (first_visible + device + 1), 16);
    return SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
    constexpr int MULTIPROCESSORS = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;
    constexpr int MULTICAST_SUPPORTED = 132;
    switch (attribute) {
        case MULTIPROCESSORS: *value = settings["multiprocessors"]; return SUCCESS;
        case CAPABILITY_MAJOR: *value = settings["capability"] / 10; return SUCCESS;
        case CAPABILITY_MINOR: *value = settings["capability"] % 10; return SUCCESS;
        case MULTICAST_SUPPORTED: *value = settings["multicast"]; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

int cuDeviceGetP2PAttribute(int* value, int attribute, int from, int to) {
    constexpr int NATIVE_ATOMICS = 3;
    if (from == to) return INVALID_DEVICE;
    if (attribute != NATIVE_ATOMICS) return INVALID_VALUE;
    *value = settings["native_atomics"];
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
    contexts[device].device = device;
    *context = &contexts[device];
    return SUCCESS;
}

int cuCtxPushCurrent(Context* context) {
    current.push_back(context);
    return SUCCESS;
}

int cuCtxPopCurrent(Context** context) {
    if (current.empty()) return INVALID_CONTEXT;
    *context = current.back();
    current.pop_back();
    return SUCCESS;
}

int cuCtxGetCurrent(Context** context) {
    *context = current.empty() ? nullptr : current.back();
    return SUCCESS;
}

int cuCtxGetDevice(int* device) {
    if (current.empty()) return INVALID_CONTEXT;
    *device = current.back()->device;
    return SUCCESS;
}

int cuCtxEnablePeerAccess(Context* peer, unsigned) {
    if (current.empty()) return INVALID_CONTEXT;
    if (!settings["peer_access"]) return PEER_ACCESS_UNSUPPORTED;
    return current.back()->peers.insert(peer).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
}

int cuMemAlloc(std::uintptr_t* address, std::size_t bytes) {
    Held held(lock);
    if (current.empty()) return INVALID_CONTEXT;
    return allocated(address, current.back()->device, bytes);
}

int cuMemAllocAsync(std::uintptr_t* address, std::size_t bytes, Stream*) {
    Held held(lock);
    int result = cuMemAlloc(address, bytes);
    if (!result) allocations[*address].is_pooled = true;
    return result;
}

int cuMemFree(std::uintptr_t address) { return released(address); }

int cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
    constexpr unsigned PORTABLE_AND_MAPPED = 3;
    Held held(lock);
    if ((flags & PORTABLE_AND_MAPPED) != PORTABLE_AND_MAPPED) return INVALID_VALUE;
    return allocated(reinterpret_cast<std::uintptr_t*>(address), -1, bytes);
}

std::set<std::uintptr_t> registered;  // by the host, for its devices

int cuMemHostRegister(void* address, std::size_t, unsigned flags) {
    constexpr unsigned PORTABLE_AND_MAPPED = 3;
    Held held(lock);
    if ((flags & PORTABLE_AND_MAPPED) != PORTABLE_AND_MAPPED) return INVALID_VALUE;
    bool is_new = registered.insert(reinterpret_cast<std::uintptr_t>(address)).second;
    return is_new ? SUCCESS : HOST_MEMORY_ALREADY_REGISTERED;
}

int cuMemHostUnregister(void* address) {
    Held held(lock);
    *static_cast<volatile char*>(address);  // it is mapped still
    bool was = registered.erase(reinterpret_cast<std::uintptr_t>(address));
    return was ? SUCCESS : INVALID_VALUE;
}

int cuMemHostGetDevicePointer(std::uintptr_t* on_device, void* address, unsigned) {
    *on_device = reinterpret_cast<std::uintptr_t>(address);
    Held held(lock);
    return registered.count(*on_device) ? SUCCESS : INVALID_VALUE;
}

int cuMemFreeHost(void* address) {
    return released(reinterpret_cast<std::uintptr_t>(address));
}

// The range of mapped memory at an address.
std::map<std::uintptr_t, Range>::iterator range_of(std::uintptr_t address) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return ranges.end();
    --after;
    bool is_in = address < after->first + after->second.bytes && after->second.handle;
    return is_in ? after : ranges.end();
}

int cuMemGetAddressRange(std::uintptr_t* first, std::size_t* bytes, std::uintptr_t address) {
    Held held(lock);
    const auto found = [=](std::uintptr_t at, std::size_t size) {
        *first = at;
        *bytes = size;
        return SUCCESS;
    };
    if (auto range = range_of(address); range != ranges.end())
        return found(range->first, range->second.bytes);
    auto allocation = holding(address);
    if (allocation == allocations.end()) return NOT_FOUND;
    return found(allocation->first, allocation->second.bytes);
}

int cuPointerGetAttribute(void* value, int attribute, std::uintptr_t address) {
    constexpr int MEMORY_TYPE = 2, BUFFER_ID = 7, DEVICE_ORDINAL = 9, IS_LEGACY_CUDA_IPC_CAPABLE = 10,
                  ACCESS_FLAGS = 16;
    constexpr std::uint64_t NONE = 0, READ_WRITE = 3;
    constexpr unsigned HOST_MEMORY = 1, DEVICE_MEMORY = 2;
    Held held(lock);
    if (auto range = range_of(address); range != ranges.end()) {
        if (attribute == DEVICE_ORDINAL)
            *static_cast<int*>(value) = handles.at(range->second.handle).device;
        else if (attribute == MEMORY_TYPE)
            *static_cast<unsigned*>(value) = DEVICE_MEMORY;
        else if (attribute == BUFFER_ID)
            *static_cast<std::uint64_t*>(value) = range->second.handle;
        else
            *static_cast<std::uint64_t*>(value) =
                attribute == ACCESS_FLAGS && range->second.access.count(current.back()->device)
                    ? READ_WRITE : NONE;
        return SUCCESS;
    }
    auto allocation = holding(address);
    if (allocation == allocations.end()) return INVALID_VALUE;
    const Allocation& a = allocation->second;
    switch (attribute) {
        case MEMORY_TYPE:
            *static_cast<unsigned*>(value) = a.device < 0 ? HOST_MEMORY : DEVICE_MEMORY;
            return SUCCESS;
        case BUFFER_ID: *static_cast<std::uint64_t*>(value) = a.id; return SUCCESS;
        case DEVICE_ORDINAL: *static_cast<int*>(value) = a.device; return SUCCESS;
        case IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<bool*>(value) = !a.is_pooled; return SUCCESS;
        case ACCESS_FLAGS: {
            bool can = a.device == current.back()->device || settings["pool_access"];
            *static_cast<std::uint64_t*>(value) = can ? READ_WRITE : NONE;
            return SUCCESS;
        }
        default: return INVALID_VALUE;
    }
}

// Values of unknown addresses stay as they are: the driver's own are zeros.
int cuPointerGetAttributes(unsigned count, int* attributes, void** values, std::uintptr_t address) {
    for (unsigned i = 0; i < count; ++i) cuPointerGetAttribute(values[i], attributes[i], address);
    return SUCCESS;
}

int started(Stream* stream, std::function<void()> what) {
    Held held(lock);
    Stream* real = found(stream);
    if (!real) return INVALID_HANDLE;
    if (real->capture)
        real->capture_node([what] { return what; });
    else
        real->start(std::move(what));
    return SUCCESS;
}

int cuMemsetD32Async(std::uintptr_t to, unsigned value, std::size_t count, Stream* stream) {
    return started(stream, [=] {
        for (std::size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
    });
}

int cuMemcpyDtoDAsync(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, Stream* stream) {
    return started(stream, [=] {
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    });
}

int cuStreamWaitValue32(Stream* stream, std::uintptr_t address, unsigned least, unsigned) {
    return started(stream, [=] {
        while (*reinterpret_cast<volatile unsigned*>(address) < least)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    });
}

int cuMemsetD8Async(std::uintptr_t to, unsigned char value, std::size_t bytes, Stream* stream) {
    return started(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}

int cuMemcpyHtoDAsync(std::uintptr_t to, const void* from, std::size_t bytes, Stream* stream) {
    return started(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}

int cuMemcpyDtoHAsync(void* to, std::uintptr_t from, std::size_t bytes, Stream* stream) {
    return started(stream, [=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
}

// Memory with addresses of its own, and multicast objects

constexpr std::size_t GRANULARITY = 2 << 20;

struct Location {  // CUmemLocation
    int type, id;
};

struct MemoryProperties {  // CUmemAllocationProp
    int type, handle_types;
    Location location;
    void* win32;
    unsigned char flags[8];
};

struct MulticastProperties {  // CUmulticastObjectProp
    unsigned devices;
    std::size_t bytes;
    unsigned long long handle_types, flags;
};

struct Access {  // CUmemAccessDesc
    Location location;
    int flags;
};

constexpr int POSIX_FILE_DESCRIPTOR = 1;
constexpr int ELSEWHERE = -2;  // memory of a device that the process needn't see

std::uint64_t last_handle = 0;

bool is_whole(std::size_t bytes) { return bytes && bytes % GRANULARITY == 0; }

Handle* of(std::uint64_t number) {
    auto found = handles.find(number);
    return found == handles.end() || found->second.is_released ? nullptr : &found->second;
}

// Memory lasts until it is released and unused.
void leave(std::uint64_t number, int fewer) {
    Handle& handle = handles.at(number);
    handle.uses -= fewer;
    if (handle.uses || !handle.is_released) return;
    if (handle.file >= 0) close(handle.file);
    for (const auto& [_, memory] : handle.bound) leave(memory, 1);
    handles.erase(number);
}

int cuMemGetInfo(std::size_t* free, std::size_t* all) {
    Held held(lock);
    if (current.empty()) return INVALID_CONTEXT;
    *all = settings["memory_bytes"];
    *free = *all - used(current.back()->device);
    return SUCCESS;
}

int cuMemGetAllocationGranularity(std::size_t* bytes, const MemoryProperties* kind, int) {
    constexpr int PINNED = 1, DEVICE = 1;
    if (kind->type != PINNED || kind->location.type != DEVICE) return INVALID_VALUE;
    *bytes = GRANULARITY;
    return SUCCESS;
}

int cuMemCreate(std::uint64_t* made, std::size_t bytes, const MemoryProperties* kind,
                unsigned long long flags) {
    Held held(lock);
    if (forbidden()) return STREAM_CAPTURE_UNSUPPORTED;
    if (!is_whole(bytes) || flags) return INVALID_VALUE;
    int device = kind->location.id;
    if (device < 0 || device >= settings["devices"]) return INVALID_DEVICE;
    if (used(device) + static_cast<long long>(bytes) > settings["memory_bytes"])
        return OUT_OF_MEMORY;
    int file = memfd_create("device", 0);
    if (ftruncate(file, bytes)) return OUT_OF_MEMORY;
    void* memory = mmap(nullptr, bytes, PROT_WRITE, MAP_SHARED, file, 0);
    std::memset(memory, 0xEE, bytes);
    munmap(memory, bytes);
    handles[*made = ++last_handle] = {bytes, device, file, 0, {}, {}, 0, false,
                                      kind->handle_types == POSIX_FILE_DESCRIPTOR};
    return SUCCESS;
}

int cuMemRelease(std::uint64_t number) {
    Held held(lock);
    if (!of(number)) return INVALID_VALUE;
    of(number)->is_released = true;
    leave(number, 0);
    return SUCCESS;
}

int cuMulticastGetGranularity(std::size_t* bytes, const MulticastProperties* kind, int) {
    if (!settings["multicast"]) return NOT_SUPPORTED;
    if (kind->devices < 1 || !kind->bytes) return INVALID_VALUE;
    *bytes = GRANULARITY;
    return SUCCESS;
}

int cuMulticastCreate(std::uint64_t* made, const MulticastProperties* kind) {
    Held held(lock);
    if (!settings["multicast"]) return NOT_SUPPORTED;
    if (kind->devices < 1 || kind->flags || !is_whole(kind->bytes)) return INVALID_VALUE;
    handles[*made = ++last_handle] = {kind->bytes, -1, -1, kind->devices, {}, {}, 0, false};
    return SUCCESS;
}

// Until all devices have been added, calls that need them wait, here for ever: an error instead.
bool is_complete(const Handle& team) { return team.added.size() == team.devices; }

int cuMulticastAddDevice(std::uint64_t number, int device) {
    Held held(lock);
    Handle* team = of(number);
    if (!team || !team->devices || is_complete(*team)) return INVALID_VALUE;
    if (device < 0 || device >= settings["devices"]) return INVALID_DEVICE;
    return team->added.insert(device).second ? SUCCESS : INVALID_VALUE;
}

int cuMulticastBindMem(std::uint64_t number, std::size_t at, std::uint64_t memory_number,
                       std::size_t from, std::size_t bytes, unsigned long long flags) {
    Held held(lock);
    Handle *team = of(number), *memory = of(memory_number);
    if (!team || !team->devices || !memory || memory->file < 0) return INVALID_VALUE;
    if (!is_complete(*team)) return ILLEGAL_STATE;
    // The stand-in binds whole memories only.
    if (at || from || flags || bytes != team->bytes || bytes != memory->bytes) return INVALID_VALUE;
    if (!team->added.count(memory->device)) return INVALID_DEVICE;
    if (!team->bound.emplace(memory->device, memory_number).second) return INVALID_VALUE;
    ++memory->uses;
    return SUCCESS;
}

int cuMulticastUnbind(std::uint64_t number, int device, std::size_t at, std::size_t bytes) {
    Held held(lock);
    Handle* team = of(number);
    if (!team || at || bytes != team->bytes || !team->bound.count(device)) return INVALID_VALUE;
    std::uint64_t memory = team->bound[device];
    team->bound.erase(device);
    leave(memory, 1);
    return SUCCESS;
}

int cuMemAddressReserve(std::uintptr_t* address, std::size_t bytes, std::size_t alignment,
                        std::uintptr_t, unsigned long long flags) {
    Held held(lock);
    if (!is_whole(bytes) || alignment & (alignment - 1) || flags) return INVALID_VALUE;
    void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (range == MAP_FAILED) return OUT_OF_MEMORY;
    *address = reinterpret_cast<std::uintptr_t>(range);
    ranges[*address] = {bytes, 0, {}};
    return SUCCESS;
}

int cuMemAddressFree(std::uintptr_t address, std::size_t bytes) {
    Held held(lock);
    auto range = ranges.find(address);
    if (range == ranges.end() || range->second.bytes != bytes || range->second.handle)
        return INVALID_VALUE;
    munmap(reinterpret_cast<void*>(address), bytes);
    ranges.erase(range);
    return SUCCESS;
}

int cuMemMap(std::uintptr_t address, std::size_t bytes, std::size_t from, std::uint64_t number,
             unsigned long long flags) {
    Held held(lock);
    auto range = ranges.find(address);
    Handle* handle = of(number);
    if (range == ranges.end() || range->second.bytes != bytes || range->second.handle)
        return INVALID_VALUE;
    if (!handle || from || flags || handle->bytes != bytes) return INVALID_VALUE;
    if (!is_complete(*handle)) return ILLEGAL_STATE;
    range->second.handle = number;
    ++handle->uses;
    int sharing = handle->file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, sharing | MAP_FIXED, handle->file, 0);
    return SUCCESS;
}

// The tables of a multicast object: the number of its memories, and their addresses on the host.
void write_tables(const Handle& team, std::uintptr_t address) {
    std::vector<std::uintptr_t> parts;
    for (const auto& [_, memory] : team.bound)
        for (const auto& [part, range] : ranges)
            if (range.handle == memory) parts.push_back(part);
    for (std::size_t offset = 0; offset < team.bytes; offset += 256) {
        auto* table = reinterpret_cast<std::uintptr_t*>(address + offset);
        *table++ = parts.size();
        for (std::uintptr_t part : parts) *table++ = part + offset;
    }
}

int cuMemSetAccess(std::uintptr_t address, std::size_t bytes, const Access* access,
                   std::size_t count) {
    constexpr int DEVICE = 1, READ_WRITE = 3;
    Held held(lock);
    auto range = ranges.find(address);
    if (range == ranges.end() || range->second.bytes != bytes || !range->second.handle)
        return INVALID_VALUE;
    const Handle& handle = handles.at(range->second.handle);
    for (std::size_t k = 0; k < count; ++k) {
        const Location& location = access[k].location;
        if (location.type != DEVICE || access[k].flags != READ_WRITE) return INVALID_VALUE;
        if (handle.devices && !handle.added.count(location.id)) return INVALID_DEVICE;
        if (handle.device != location.id && !settings["peer_access"]) return NOT_SUPPORTED;
        range->second.access.insert(location.id);
    }
    mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
    if (handle.devices) write_tables(handle, address);
    return SUCCESS;
}

int cuMemUnmap(std::uintptr_t address, std::size_t bytes) {
    Held held(lock);
    auto range = ranges.find(address);
    if (range == ranges.end() || range->second.bytes != bytes || !range->second.handle)
        return INVALID_VALUE;
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    leave(std::exchange(range->second.handle, 0), 1);
    return SUCCESS;
}

int cuMemRetainAllocationHandle(std::uint64_t* number, std::uintptr_t address) {
    Held held(lock);
    auto range = range_of(address);
    if (range == ranges.end()) return INVALID_VALUE;
    *number = range->second.handle;
    handles.at(*number).is_released = false;
    return SUCCESS;
}

int cuMemExportToShareableHandle(int* descriptor, std::uint64_t number, int kind,
                                 unsigned long long flags) {
    Held held(lock);
    Handle* handle = of(number);
    if (!handle || kind != POSIX_FILE_DESCRIPTOR || flags || !handle->is_exportable)
        return INVALID_VALUE;
    *descriptor = fcntl(handle->file, F_DUPFD_CLOEXEC, 0);
    return SUCCESS;
}

// The file doesn't say on which device the memory is: whoever imports it needn't see that one.
int cuMemImportFromShareableHandle(std::uint64_t* made, void* descriptor, int kind) {
    Held held(lock);
    struct stat about;
    int file = static_cast<int>(reinterpret_cast<std::uintptr_t>(descriptor));
    if (kind != POSIX_FILE_DESCRIPTOR || fstat(file, &about)) return INVALID_VALUE;
    handles[*made = ++last_handle] = {std::size_t(about.st_size), ELSEWHERE,
                                      fcntl(file, F_DUPFD_CLOEXEC, 0), 0, {}, {}, 0, false};
    return SUCCESS;
}

struct IpcHandle {  // CUipcMemHandle, which is passed by value
    long process;
    int file, device;
    std::size_t bytes;
    char rest[40];
};
static_assert(sizeof(IpcHandle) == 64);

int cuIpcGetMemHandle(IpcHandle* handle, std::uintptr_t address) {
    Held held(lock);
    auto allocation = allocations.find(address);
    if (allocation == allocations.end()) return INVALID_VALUE;
    const Allocation& a = allocation->second;
    if (a.device < 0 || a.is_pooled) return INVALID_VALUE;
    *handle = {getpid(), a.file, a.device, a.bytes, {}};
    return SUCCESS;
}

int cuIpcOpenMemHandle(std::uintptr_t* address, IpcHandle handle, unsigned flags) {
    constexpr unsigned LAZY_ENABLE_PEER_ACCESS = 1;
    Held held(lock);
    if (handle.process == getpid()) return INVALID_CONTEXT;
    if (flags != LAZY_ENABLE_PEER_ACCESS) return INVALID_VALUE;
    if (!settings["peer_access"]) return PEER_ACCESS_UNSUPPORTED;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%ld/fd/%d", handle.process, handle.file);
    int file = open(path, O_RDWR);
    if (file < 0) return CANNOT_MAP;
    return mapped(address, handle.device, handle.bytes, file);
}

int cuIpcCloseMemHandle(std::uintptr_t address) { return released(address); }

struct Module {
    void* library = nullptr;
    std::size_t call_bytes = 0;
};

int cuModuleLoadData(Module** module, const char* image) {
    if (forbidden()) return STREAM_CAPTURE_UNSUPPORTED;
    *module = new Module;
    std::size_t bytes;
    if (std::sscanf(image, "library %zu %zu", &(*module)->call_bytes, &bytes) != 2) return SUCCESS;
    char path[] = "/tmp/sley-module-XXXXXX";  // the loader takes equal names for one object
    int file = mkstemp(path);
    if (file < 0) return INVALID_IMAGE;
    const char* object = std::strchr(image, '\n') + 1;
    if (write(file, object, bytes) == static_cast<ssize_t>(bytes))
        (*module)->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    close(file);
    unlink(path);
    return (*module)->library ? SUCCESS : INVALID_IMAGE;
}

struct Function {
    std::string name;
    Registered own;  // of the module's library
};

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    void* kernel = module->library ? dlsym(module->library, name) : nullptr;
    if (!std::strcmp(name, "missing") || (module->library && !kernel)) return NOT_FOUND;
    *function = new Function{name, {reinterpret_cast<Kernel>(kernel), module->call_bytes}};
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
    *blocks = settings["blocks_each"];
    return SUCCESS;
}

int cuStreamCreate(Stream** stream, unsigned) {
    Held held(lock);
    *stream = new Stream(current.back());
    streams.insert(*stream);
    return SUCCESS;
}

int cuStreamDestroy(Stream* stream) {
    Held held(lock);
    if (!streams.erase(stream)) return INVALID_HANDLE;
    destroyed.insert(stream);
    return SUCCESS;
}

int cuStreamSynchronize(Stream* stream) {
    Stream* real;
    {
        Held held(lock);
        real = found(stream);
        if (!real) return INVALID_HANDLE;
        if (real->capture) return STREAM_CAPTURE_UNSUPPORTED;
    }
    real->wait();
    return SUCCESS;
}

int cuCtxSynchronize() {
    std::vector<Stream*> all;
    {
        Held held(lock);
        if (captures) return STREAM_CAPTURE_UNSUPPORTED;
        for (const auto& some : {streams, destroyed})
            for (Stream* stream : some)
                if (stream->context == current.back()) all.push_back(stream);
        all.push_back(found(nullptr));
    }
    for (Stream* stream : all) stream->wait();
    return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(*mode, capture_mode);
    return SUCCESS;
}

int cuStreamBeginCapture(Stream* stream, int) {
    Held held(lock);
    Stream* real = found(stream);
    real->capture = ++last_number;
    real->graph = std::make_shared<Graph>(Graph{real, {}});
    ++captures;
    return SUCCESS;
}

int cuStreamEndCapture(Stream* stream, Graph** graph) {
    Held held(lock);
    Stream* real = found(stream);
    const auto taken = real->graph;
    *graph = new Graph(*taken);
    for (auto some : {streams, std::set<Stream*>{real}})
        for (Stream* each : some)
            if (each->graph == taken) each->capture = 0, each->graph = nullptr;
    --captures;
    return SUCCESS;
}

int cuGraphInstantiateWithFlags(Graph** ready, Graph* graph, unsigned long long) {
    *ready = new Graph(*graph);
    return SUCCESS;
}

int cuGraphLaunch(Graph* ready, Stream* stream) {
    std::lock_guard<std::mutex> turn(waiting);
    Held held(lock);  // so that the events of a graph are those of one moment
    for (const auto& [captured, node] : ready->work)
        if (int result = started(captured == ready->origin ? stream : captured, node())) return result;
    return SUCCESS;
}

int cuGraphExecDestroy(Graph* ready) {
    delete ready;
    return SUCCESS;
}

int cuGraphDestroy(Graph* graph) {
    delete graph;
    return SUCCESS;
}

Stream* of_any_context(Stream* stream) { return streams.count(stream) ? stream : found(stream); }

int cuStreamGetCaptureInfo(Stream* stream, int* status, std::uint64_t* number, void*, void*, void*) {
    Held held(lock);
    Stream* real = of_any_context(stream);
    if (!real) return INVALID_HANDLE;
    *status = real->capture != 0;
    *number = real->capture;
    return SUCCESS;
}

int cuStreamGetId(Stream* stream, std::uint64_t* number) {
    Held held(lock);
    Stream* real = of_any_context(stream);
    if (!real) return INVALID_HANDLE;
    *number = real->number;
    return SUCCESS;
}

int cuStreamGetCtx(Stream* stream, Context** context) {
    Held held(lock);
    Stream* real = of_any_context(stream);
    if (!real) return INVALID_HANDLE;
    if (real->capture) return STREAM_CAPTURE_UNSUPPORTED;
    *context = real->context;
    return SUCCESS;
}

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    long set = 0, reached = 0;
    std::uint64_t capture = 0;   // the one in which it was last recorded, for streams of that
    std::weak_ptr<Graph> graph;  // while that lasts
    std::chrono::steady_clock::time_point at;

    bool is_done() {
        std::lock_guard<std::mutex> held(lock);
        return reached >= set;
    }

    std::function<void()> recorded() {
        return [this, number = ++set] {
            std::lock_guard<std::mutex> held(lock);
            reached = number;
            at = std::chrono::steady_clock::now();
            changed.notify_all();
        };
    }
    std::function<void()> awaited() {
        return [this, number = set] {
            std::unique_lock<std::mutex> held(lock);
            changed.wait(held, [=] { return reached >= number; });
        };
    }
};

constexpr unsigned EXTERNAL = 1;  // a node of the graph that is captured, for an event of others

int cuEventCreate(Event** event, unsigned) {
    *event = new Event;
    return SUCCESS;
}

int cuEventDestroy(Event*) { return SUCCESS; }  // streams may still wait for it

int cuEventQuery(Event* event) {
    if (forbidden()) return STREAM_CAPTURE_UNSUPPORTED;
    return event->is_done() ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(Event* event) {
    if (forbidden()) return STREAM_CAPTURE_UNSUPPORTED;
    event->awaited()();
    return SUCCESS;
}

int cuEventRecordWithFlags(Event* event, Stream* stream, unsigned flags) {
    Held held(lock);
    Stream* real = found(stream);
    if (!real) return INVALID_HANDLE;
    if (flags && !real->capture) return INVALID_VALUE;
    if (flags == EXTERNAL) {
        real->capture_node([event] { return event->recorded(); });
        return SUCCESS;
    }
    event->capture = real->capture;
    event->graph = real->graph;
    if (!real->capture) return started(stream, event->recorded());
    real->capture_node([event] { return event->recorded(); });
    return SUCCESS;
}

int cuEventRecord(Event* event, Stream* stream) { return cuEventRecordWithFlags(event, stream, 0); }

int cuEventElapsedTime(float* ms, Event* begin, Event* end) {
    *ms = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
    return SUCCESS;
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
    Held held(lock);
    Stream* real = found(stream);
    if (!real) return INVALID_HANDLE;
    if (flags && !real->capture) return INVALID_VALUE;
    const auto graph = event->graph.lock();
    if (graph && !real->capture) {  // a branch of the capture begins
        real->capture = event->capture;
        real->graph = graph;
    }
    const bool is_apart = flags == EXTERNAL ? event->capture != 0 : event->capture != real->capture;
    if (is_apart) return STREAM_CAPTURE_ISOLATION;
    if (real->capture)
        real->capture_node([event] { return event->awaited(); });
    else
        real->start(event->awaited());
    return SUCCESS;
}

// Whether a launch, by its number, comes after the one that a setting names.
bool after(const char* setting, long long number) {
    return settings[setting] >= 0 && number >= settings[setting];
}

void (*at_launch)() = nullptr;  // called before each launch

int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** arguments, void**) {
    constexpr int COOPERATIVE = 2;
    if (at_launch) at_launch();
    std::lock_guard<std::mutex> turn(waiting);
    Held held(lock);
    if (current.empty()) return INVALID_CONTEXT;
    bool together = false;
    for (unsigned i = 0; i < config->attribute_count; ++i)
        together |= config->attributes[i].id == COOPERATIVE && config->attributes[i].value[0];
    const unsigned* grid = config->grid;
    const unsigned* block = config->block;
    if (together && grid[0] > settings["multiprocessors"] * settings["blocks_each"])
        return COOPERATIVE_LAUNCH_TOO_LARGE;
    const std::string& name = function->name;
    const Registered& registered = function->own.kernel ? function->own : kernels[name];
    long long number = settings["launches"]++;
    if (after("lost", number)) lost = true;
    const char* bytes = static_cast<const char*>(arguments[0]);
    std::string call(bytes, registered.call_bytes);
    char line[256];
    int length = std::snprintf(
        line, sizeof line, "launch %s grid %u %u %u block %u %u %u together %d call ",
        name.c_str(), grid[0], grid[1], grid[2], block[0], block[1], block[2], together);
    std::string note(line, length);
    for (unsigned char c : call) {
        note += "0123456789abcdef"[c / 16];
        note += "0123456789abcdef"[c % 16];
    }
    journal.push_back(note);
    int blocks = after("lame", number) ? grid[0] - 1 : grid[0];
    unsigned most = settings["multiprocessors"] * settings["blocks_each"];
    Room& room = current.back()->room;
    return started(config->stream, [=, &room, wanted = grid[0], kernel = registered.kernel,
                                    ends = !after("endless", number)] {
        const unsigned has = room.take(wanted, most, together);
        while (!ends) std::this_thread::sleep_for(std::chrono::hours(1));
        if (kernel && !lost) kernel(call.data(), blocks);
        room.leave(has);
    });
}

int cuGetProcAddress(const char* symbol, void** function, int, std::uint64_t, int* status);

#define ENTRY(entry) {#entry, named<Entry<decltype(&entry), &entry>>(#entry)}

template <class E>
void* named(const char* name) {
    E::name = name;
    E::waits = WAITING.count(name);
    return reinterpret_cast<void*>(&E::call);
}

const std::map<std::string, void*>& entries() {
    static const std::map<std::string, void*> all = {
        ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuGetErrorString),
        ENTRY(cuGetErrorName), ENTRY(cuDeviceGetCount),
        ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetUuid),
        ENTRY(cuDeviceGetAttribute), ENTRY(cuDeviceGetP2PAttribute), ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuCtxPushCurrent),
        ENTRY(cuCtxPopCurrent), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxGetDevice),
        ENTRY(cuCtxSynchronize),
        ENTRY(cuCtxEnablePeerAccess), ENTRY(cuMemAlloc), ENTRY(cuMemAllocAsync),
        ENTRY(cuMemFree), ENTRY(cuMemHostAlloc), ENTRY(cuMemHostRegister), ENTRY(cuMemHostUnregister),
        ENTRY(cuMemGetInfo), ENTRY(cuMemGetAllocationGranularity), ENTRY(cuMemCreate), ENTRY(cuMemRelease),
        ENTRY(cuMulticastGetGranularity), ENTRY(cuMulticastCreate), ENTRY(cuMulticastAddDevice),
        ENTRY(cuMulticastBindMem), ENTRY(cuMulticastUnbind), ENTRY(cuMemAddressReserve),
        ENTRY(cuMemAddressFree), ENTRY(cuMemMap), ENTRY(cuMemSetAccess), ENTRY(cuMemUnmap),
        ENTRY(cuMemRetainAllocationHandle), ENTRY(cuMemExportToShareableHandle),
        ENTRY(cuMemImportFromShareableHandle), ENTRY(cuMemGetAddressRange),
        ENTRY(cuIpcGetMemHandle), ENTRY(cuIpcOpenMemHandle), ENTRY(cuIpcCloseMemHandle),
        ENTRY(cuMemHostGetDevicePointer), ENTRY(cuMemFreeHost),
        ENTRY(cuPointerGetAttribute), ENTRY(cuPointerGetAttributes), ENTRY(cuMemsetD8Async), ENTRY(cuMemcpyHtoDAsync),
        ENTRY(cuMemcpyDtoHAsync), ENTRY(cuModuleLoadData), ENTRY(cuModuleGetFunction),
        ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor), ENTRY(cuStreamCreate),
        ENTRY(cuStreamDestroy), ENTRY(cuStreamSynchronize), ENTRY(cuStreamBeginCapture),
        ENTRY(cuStreamEndCapture), ENTRY(cuThreadExchangeStreamCaptureMode),
        ENTRY(cuStreamGetCaptureInfo), ENTRY(cuStreamGetId), ENTRY(cuStreamGetCtx), ENTRY(cuEventCreate),
        ENTRY(cuEventDestroy), ENTRY(cuEventQuery), ENTRY(cuEventSynchronize),
        ENTRY(cuEventRecord), ENTRY(cuEventRecordWithFlags), ENTRY(cuStreamWaitEvent),
        ENTRY(cuLaunchKernelEx), ENTRY(cuGetProcAddress), ENTRY(cuMemsetD32Async),
        ENTRY(cuMemcpyDtoDAsync), ENTRY(cuStreamWaitValue32), ENTRY(cuEventElapsedTime),
        ENTRY(cuGraphInstantiateWithFlags), ENTRY(cuGraphLaunch), ENTRY(cuGraphExecDestroy),
        ENTRY(cuGraphDestroy),
    };
    return all;
}

int cuGetProcAddress(const char* symbol, void** function, int, std::uint64_t, int* status) {
    constexpr int FOUND = 0, SYMBOL_NOT_FOUND = 1;
    auto entry = entries().find(symbol);
    auto failure = failures.find(symbol);
    bool known = entry != entries().end() && (failure == failures.end() || failure->second > 0);
    *function = known ? entry->second : nullptr;
    if (status) *status = known ? FOUND : SYMBOL_NOT_FOUND;
    return known ? SUCCESS : NOT_FOUND;
}

}  // namespace

extern "C" {

int cuGetProcAddress_v2(const char* symbol, void** function, int version, std::uint64_t flags,
                        int* status) {
    return cuGetProcAddress(symbol, function, version, flags, status);
}

// What tests use: change a number of `settings`, and get what it was; make an entry point fail (0:
// no more; -1: unknown to cuGetProcAddress); name the function that runs as a kernel, and the size of its argument; call
// a function before each launch; read and empty
// the journal of calls and launches, a line each, and the names of calls that hung; how many bytes a
// device has given away.

long long fake_set(const char* setting, long long value) {
    std::swap(settings[setting], value);
    return value;
}

void fake_fail(const char* entry, int error) {
    if (error)
        failures[entry] = error;
    else
        failures.erase(entry);
}

void fake_kernel(const char* name, std::uintptr_t kernel, std::size_t call_bytes) {
    kernels[name] = {reinterpret_cast<Kernel>(kernel), call_bytes};
}

void fake_at_launch(void (*call)()) { at_launch = call; }

const char* fake_journal() {
    static std::string text;
    Held held(lock);
    text.clear();
    for (const std::string& line : journal) text += line + "\n";
    journal.clear();
    return text.c_str();
}

const char* fake_hangs() {
    static std::string names;
    Held held(lock);
    names = std::exchange(hangs, "");
    return names.c_str();
}

long long fake_used(int device) {
    Held held(lock);
    return used(device);
}
}
