// The part of UCP, the upper layer of UCX, that this program uses, in declarations of its own, so
// that the build doesn't need the library. UCP's structures begin with a mask of the fields that
// are set, and grow only at the end, so the first fields suffice; values and offsets are those of
// API 1.10 and newer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sley::ucp {

using Context = struct OpaqueContext*;
using Worker = struct OpaqueWorker*;
using Endpoint = struct OpaqueEndpoint*;
using Config = struct OpaqueConfig*;
using Address = struct OpaqueAddress;
using Request = void*;  // a request, nullptr if done at once, or an error

// A byte, as in the library.
enum class Status : std::int8_t {
    kOk = 0,
    kInProgress = 1,
    kBusy = -15,
    kLast = -100,
};

inline bool is_error(Request request) {
    return reinterpret_cast<std::uintptr_t>(request) >=
           static_cast<std::uintptr_t>(static_cast<std::intptr_t>(Status::kLast));
}
inline bool is_pending(Request request) { return request != nullptr && !is_error(request); }

constexpr unsigned kApiMajor = 1, kApiMinor = 10;

struct Params {
    static constexpr std::uint64_t kFeatures = 1 << 0, kSharedWorkers = 1 << 5, kEndpoints = 1 << 6;
    static constexpr std::uint64_t kWakeup = 1 << 4, kActiveMessages = 1 << 6;  // features

    std::uint64_t field_mask;
    std::uint64_t features;
    std::size_t request_size;
    void (*request_init)(void*);
    void (*request_cleanup)(void*);
    std::uint64_t tag_sender_mask;
    int mt_workers_shared;
    std::size_t estimated_num_eps;
};

struct WorkerParams {
    static constexpr std::uint64_t kThreadMode = 1 << 0;
    static constexpr std::int32_t kSerialized = 1;

    std::uint64_t field_mask;
    std::int32_t thread_mode;
};

struct WorkerAttributes {
    static constexpr std::uint64_t kAddress = 1 << 1;

    std::uint64_t field_mask;
    std::int32_t thread_mode;
    std::uint32_t address_flags;
    Address* address;
    std::size_t address_length;
};

struct ErrorHandler {
    void (*call)(void* argument, Endpoint endpoint, Status status);
    void* argument;
};

struct EndpointParams {
    static constexpr std::uint64_t kRemoteAddress = 1 << 0, kErrorMode = 1 << 1,
                                   kErrorHandler = 1 << 2;
    static constexpr std::int32_t kPeerErrors = 1;  // an error mode

    std::uint64_t field_mask;
    const Address* address;
    std::int32_t error_mode;
    ErrorHandler error_handler;
};

union Callback {
    void (*sent)(Request request, Status status, void* user_data);
    void (*received)(Request request, Status status, std::size_t length, void* user_data);
};

struct RequestParams {
    static constexpr std::uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kFlags = 1 << 4;
    static constexpr std::uint32_t kForceClose = 1 << 0;  // a flag of `ucp_ep_close_nbx`

    std::uint32_t attribute_mask;
    std::uint32_t flags;
    Request request;
    Callback callback;
    std::uint64_t datatype;
    void* user_data;
};

struct ActiveMessageParams {
    static constexpr std::uint64_t kRendezvous = 1 << 17;

    std::uint64_t attributes;
    Endpoint reply_to;
};

using ActiveMessageCallback = Status (*)(void* argument, const void* header,
                                         std::size_t header_length, void* data,
                                         std::size_t length, const ActiveMessageParams* params);

struct ActiveMessageHandler {
    static constexpr std::uint64_t kId = 1 << 0, kCallback = 1 << 2, kArgument = 1 << 3;

    std::uint64_t field_mask;
    unsigned id;
    std::uint32_t flags;
    ActiveMessageCallback callback;
    void* argument;
};

// The library's functions, by name.
struct Functions {
    void (*ucp_get_version)(unsigned* major, unsigned* minor, unsigned* release);
    Status (*ucp_config_read)(const char* prefix, const char* file, Config* config);
    Status (*ucp_config_modify)(Config config, const char* name, const char* value);
    void (*ucp_config_release)(Config config);
    Status (*ucp_init_version)(unsigned major, unsigned minor, const Params* params, Config config,
                               Context* context);
    void (*ucp_cleanup)(Context context);
    Status (*ucp_worker_create)(Context context, const WorkerParams* params, Worker* worker);
    Status (*ucp_worker_query)(Worker worker, WorkerAttributes* attributes);
    void (*ucp_worker_release_address)(Worker worker, Address* address);
    Status (*ucp_worker_set_am_recv_handler)(Worker worker, const ActiveMessageHandler* handler);
    unsigned (*ucp_worker_progress)(Worker worker);
    Status (*ucp_worker_get_efd)(Worker worker, int* descriptor);
    Status (*ucp_worker_arm)(Worker worker);
    void (*ucp_worker_destroy)(Worker worker);
    Status (*ucp_ep_create)(Worker worker, const EndpointParams* params, Endpoint* endpoint);
    Request (*ucp_ep_close_nbx)(Endpoint endpoint, const RequestParams* params);
    Request (*ucp_am_send_nbx)(Endpoint endpoint, unsigned id, const void* header,
                               std::size_t header_length, const void* data, std::size_t length,
                               const RequestParams* params);
    Request (*ucp_am_recv_data_nbx)(Worker worker, void* descriptor, void* buffer,
                                    std::size_t length, const RequestParams* params);
    Status (*ucp_request_check_status)(Request request);
    void (*ucp_request_free)(Request request);
    const char* (*ucs_status_string)(Status status);
};

}  // namespace sley::ucp
