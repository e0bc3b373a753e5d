// Loading UCX, and its set-up for one NIC.
#include "network/ucx_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "network/socket.hpp"

namespace sley {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) raise_network(ENOSYS, std::string("UCX without ") + name);
}

using Options = std::vector<std::pair<std::string, std::string>>;

// From these minor versions on, a transport's option has the same name as in the environment
// (TCP_TX_SEG_SIZE, before TX_SEG_SIZE), and TCP has one for its user timeout. The library
// complains of unknown options on the standard output.
constexpr unsigned kPrefixedOptions = 17, kUserTimeout = 22;

// UCX must not connect ranks within a host. The other options are for TCP alone: a message is one
// segment (8 KB segments take three times as long), connecting doesn't block, and a host that
// doesn't answer is noticed.
Options options_for(const UcxSettings& settings, const UcxLibrary& library) {
    constexpr std::size_t kLeastSegment = 64 * 1024, kMostSegment = 1024 * 1024, kHeads = 1024;
    const auto segment = std::clamp(settings.frame_bytes + kHeads, kLeastSegment, kMostSegment);
    const std::string tcp = library.minor() >= kPrefixedOptions ? "TCP_" : "";
    Options options = {
        {"TLS", "^sm"},
        {tcp + "TX_SEG_SIZE", std::to_string(segment)},
        {tcp + "RX_SEG_SIZE", std::to_string(segment)},
        {tcp + "CONN_NB", "y"},
    };
    if (library.minor() >= kUserTimeout) {
        const auto silence = std::to_string(settings.silence.count()) + "ms";
        options.emplace_back(tcp + "USER_TIMEOUT", silence);
    }
    return options;
}

}  // namespace

UcxLibrary::UcxLibrary(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) raise_network(ENOENT, dlerror());
    auto& f = functions_;
    find(library, "ucp_get_version", f.ucp_get_version);
    find(library, "ucp_config_read", f.ucp_config_read);
    find(library, "ucp_config_modify", f.ucp_config_modify);
    find(library, "ucp_config_release", f.ucp_config_release);
    find(library, "ucp_init_version", f.ucp_init_version);
    find(library, "ucp_cleanup", f.ucp_cleanup);
    find(library, "ucp_worker_create", f.ucp_worker_create);
    find(library, "ucp_worker_query", f.ucp_worker_query);
    find(library, "ucp_worker_release_address", f.ucp_worker_release_address);
    find(library, "ucp_worker_set_am_recv_handler", f.ucp_worker_set_am_recv_handler);
    find(library, "ucp_worker_progress", f.ucp_worker_progress);
    find(library, "ucp_worker_get_efd", f.ucp_worker_get_efd);
    find(library, "ucp_worker_arm", f.ucp_worker_arm);
    find(library, "ucp_worker_destroy", f.ucp_worker_destroy);
    find(library, "ucp_ep_create", f.ucp_ep_create);
    find(library, "ucp_ep_close_nbx", f.ucp_ep_close_nbx);
    find(library, "ucp_am_send_nbx", f.ucp_am_send_nbx);
    find(library, "ucp_am_recv_data_nbx", f.ucp_am_recv_data_nbx);
    find(library, "ucp_request_check_status", f.ucp_request_check_status);
    find(library, "ucp_request_free", f.ucp_request_free);
    find(library, "ucs_status_string", f.ucs_status_string);
    f.ucp_get_version(&major_, &minor_, &release_);
    if (major_ != ucp::kApiMajor || minor_ < ucp::kApiMinor) {
        raise_network(ENOSYS, "UCX " + version() + " instead of 1.10 or newer");
    }
}

std::string UcxLibrary::version() const {
    return std::to_string(major_) + "." + std::to_string(minor_) + "." + std::to_string(release_);
}

void UcxLibrary::check(ucp::Status status, const std::string& what) const {
    if (status == ucp::Status::kOk) return;
    raise_network(EIO, "UCX, " + what + ": " + functions_.ucs_status_string(status));
}

// The ranks choose the NIC. Options set in the environment stay; errors of options that a version
// or build doesn't have are ignored.
UcxRail::UcxRail(std::shared_ptr<const UcxLibrary> library, const std::string& nic,
                 std::size_t peers, const UcxSettings& settings)
    : library_(std::move(library)) {
    const auto& f = (*library_)();
    ucp::Config config = nullptr;
    library_->check(f.ucp_config_read(nullptr, nullptr, &config), "its configuration");
    auto status = f.ucp_config_modify(config, "NET_DEVICES", nic.c_str());
    for (const auto& [name, value] : options_for(settings, *library_)) {
        if (std::getenv(("UCX_" + name).c_str()) != nullptr) continue;
        f.ucp_config_modify(config, name.c_str(), value.c_str());
    }
    ucp::Params params{};
    params.field_mask = ucp::Params::kFeatures | ucp::Params::kSharedWorkers |
                        ucp::Params::kEndpoints;
    params.features = ucp::Params::kActiveMessages | ucp::Params::kWakeup;
    params.estimated_num_eps = peers;
    if (status == ucp::Status::kOk) {
        status = f.ucp_init_version(ucp::kApiMajor, ucp::kApiMinor, &params, config, &context_);
    }
    f.ucp_config_release(config);
    library_->check(status, "the NIC " + nic);
    ucp::WorkerParams worker{};
    worker.field_mask = ucp::WorkerParams::kThreadMode;
    worker.thread_mode = ucp::WorkerParams::kSerialized;
    status = f.ucp_worker_create(context_, &worker, &worker_);
    if (status == ucp::Status::kOk) {
        status = f.ucp_worker_get_efd(worker_, &descriptor_);
        if (status != ucp::Status::kOk) f.ucp_worker_destroy(worker_);
    }
    if (status != ucp::Status::kOk) f.ucp_cleanup(context_);
    library_->check(status, "a worker for " + nic);
}

UcxRail::~UcxRail() {
    (*library_)().ucp_worker_destroy(worker_);
    (*library_)().ucp_cleanup(context_);
}

std::string UcxRail::address() const {
    ucp::WorkerAttributes attributes{};
    attributes.field_mask = ucp::WorkerAttributes::kAddress;
    library_->check((*library_)().ucp_worker_query(worker_, &attributes), "its address");
    std::string bytes(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
    (*library_)().ucp_worker_release_address(worker_, attributes.address);
    return bytes;
}

void UcxRail::handle(unsigned id, ucp::ActiveMessageCallback callback, void* argument) const {
    ucp::ActiveMessageHandler handler{};
    handler.field_mask = ucp::ActiveMessageHandler::kId | ucp::ActiveMessageHandler::kCallback |
                         ucp::ActiveMessageHandler::kArgument;
    handler.id = id;
    handler.callback = callback;
    handler.argument = argument;
    library_->check((*library_)().ucp_worker_set_am_recv_handler(worker_, &handler), "a handler");
}

}  // namespace sley
