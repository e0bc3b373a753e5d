// Compares what ucx_abi.hpp declares with UCX's own headers. It need only compile.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <type_traits>

#include "network/ucx_abi.hpp"

namespace {

namespace ours = sley::ucp;

#define SAME_VALUE(own, theirs) \
    static_assert(static_cast<long long>(own) == static_cast<long long>(theirs), #theirs)
#define SAME_PLACE(Own, own, Theirs, theirs)                                     \
    static_assert(offsetof(Own, own) == offsetof(Theirs, theirs) &&              \
                      sizeof(Own::own) == sizeof(std::declval<Theirs&>().theirs), \
                  #Theirs "." #theirs)

static_assert(sizeof(ours::Status) == sizeof(ucs_status_t), "ucs_status_t");
SAME_VALUE(ours::Status::kOk, UCS_OK);
SAME_VALUE(ours::Status::kInProgress, UCS_INPROGRESS);
SAME_VALUE(ours::Status::kBusy, UCS_ERR_BUSY);
SAME_VALUE(ours::Status::kLast, UCS_ERR_LAST);

using OwnParams = ours::Params;
SAME_VALUE(OwnParams::kFeatures, UCP_PARAM_FIELD_FEATURES);
SAME_VALUE(OwnParams::kSharedWorkers, UCP_PARAM_FIELD_MT_WORKERS_SHARED);
SAME_VALUE(OwnParams::kEndpoints, UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
SAME_VALUE(OwnParams::kActiveMessages, UCP_FEATURE_AM);
SAME_VALUE(OwnParams::kWakeup, UCP_FEATURE_WAKEUP);
SAME_PLACE(OwnParams, field_mask, ucp_params_t, field_mask);
SAME_PLACE(OwnParams, features, ucp_params_t, features);
SAME_PLACE(OwnParams, mt_workers_shared, ucp_params_t, mt_workers_shared);
SAME_PLACE(OwnParams, estimated_num_eps, ucp_params_t, estimated_num_eps);

using OwnWorker = ours::WorkerParams;
SAME_VALUE(OwnWorker::kThreadMode, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME_VALUE(OwnWorker::kSerialized, UCS_THREAD_MODE_SERIALIZED);
SAME_PLACE(OwnWorker, field_mask, ucp_worker_params_t, field_mask);
SAME_PLACE(OwnWorker, thread_mode, ucp_worker_params_t, thread_mode);

using OwnAttributes = ours::WorkerAttributes;
SAME_VALUE(OwnAttributes::kAddress, UCP_WORKER_ATTR_FIELD_ADDRESS);
SAME_PLACE(OwnAttributes, field_mask, ucp_worker_attr_t, field_mask);
SAME_PLACE(OwnAttributes, address, ucp_worker_attr_t, address);
SAME_PLACE(OwnAttributes, address_length, ucp_worker_attr_t, address_length);

using OwnEndpoint = ours::EndpointParams;
SAME_VALUE(OwnEndpoint::kRemoteAddress, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME_VALUE(OwnEndpoint::kErrorMode, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME_VALUE(OwnEndpoint::kErrorHandler, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME_VALUE(OwnEndpoint::kPeerErrors, UCP_ERR_HANDLING_MODE_PEER);
SAME_PLACE(OwnEndpoint, field_mask, ucp_ep_params_t, field_mask);
SAME_PLACE(OwnEndpoint, address, ucp_ep_params_t, address);
SAME_PLACE(OwnEndpoint, error_mode, ucp_ep_params_t, err_mode);
SAME_PLACE(OwnEndpoint, error_handler, ucp_ep_params_t, err_handler);
SAME_PLACE(ours::ErrorHandler, call, ucp_err_handler_t, cb);
SAME_PLACE(ours::ErrorHandler, argument, ucp_err_handler_t, arg);

using OwnRequest = ours::RequestParams;
SAME_VALUE(OwnRequest::kCallback, UCP_OP_ATTR_FIELD_CALLBACK);
SAME_VALUE(OwnRequest::kUserData, UCP_OP_ATTR_FIELD_USER_DATA);
SAME_VALUE(OwnRequest::kFlags, UCP_OP_ATTR_FIELD_FLAGS);
SAME_VALUE(OwnRequest::kForceClose, UCP_EP_CLOSE_FLAG_FORCE);
SAME_PLACE(OwnRequest, attribute_mask, ucp_request_param_t, op_attr_mask);
SAME_PLACE(OwnRequest, flags, ucp_request_param_t, flags);
SAME_PLACE(OwnRequest, callback, ucp_request_param_t, cb);
SAME_PLACE(OwnRequest, user_data, ucp_request_param_t, user_data);

using OwnMessage = ours::ActiveMessageParams;
SAME_VALUE(OwnMessage::kRendezvous, UCP_AM_RECV_ATTR_FLAG_RNDV);
SAME_PLACE(OwnMessage, attributes, ucp_am_recv_param_t, recv_attr);

using OwnHandler = ours::ActiveMessageHandler;
SAME_VALUE(OwnHandler::kId, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME_VALUE(OwnHandler::kCallback, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME_VALUE(OwnHandler::kArgument, UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME_PLACE(OwnHandler, field_mask, ucp_am_handler_param_t, field_mask);
SAME_PLACE(OwnHandler, id, ucp_am_handler_param_t, id);
SAME_PLACE(OwnHandler, callback, ucp_am_handler_param_t, cb);
SAME_PLACE(OwnHandler, argument, ucp_am_handler_param_t, arg);

// Functions: the number of arguments, and the size and sort of each and of the result, are equal.
template <class A, class B>
constexpr bool is_alike() {
    if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
        return std::is_void_v<A> && std::is_void_v<B>;
    } else {
        return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
    }
}

template <class A, class B>
struct Alike : std::false_type {};
template <class R, class S, class... A, class... B>
struct Alike<R (*)(A...), S (*)(B...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(A) == sizeof...(B)) {
            return is_alike<R, S>() && (is_alike<A, B>() && ...);
        } else {
            return false;
        }
    }();
};

#define SAME_FUNCTION(name) \
    static_assert(Alike<decltype(&::name), decltype(ours::Functions::name)>::value, #name)

SAME_FUNCTION(ucp_get_version);
SAME_FUNCTION(ucp_config_read);
SAME_FUNCTION(ucp_config_modify);
SAME_FUNCTION(ucp_config_release);
SAME_FUNCTION(ucp_init_version);
SAME_FUNCTION(ucp_cleanup);
SAME_FUNCTION(ucp_worker_create);
SAME_FUNCTION(ucp_worker_query);
SAME_FUNCTION(ucp_worker_release_address);
SAME_FUNCTION(ucp_worker_set_am_recv_handler);
SAME_FUNCTION(ucp_worker_progress);
SAME_FUNCTION(ucp_worker_get_efd);
SAME_FUNCTION(ucp_worker_arm);
SAME_FUNCTION(ucp_worker_destroy);
SAME_FUNCTION(ucp_ep_create);
SAME_FUNCTION(ucp_ep_close_nbx);
SAME_FUNCTION(ucp_am_send_nbx);
SAME_FUNCTION(ucp_am_recv_data_nbx);
SAME_FUNCTION(ucp_request_check_status);
SAME_FUNCTION(ucp_request_free);
SAME_FUNCTION(ucs_status_string);

static_assert(Alike<ucp_am_recv_callback_t, ours::ActiveMessageCallback>::value, "the callback");
static_assert(Alike<ucp_send_nbx_callback_t, decltype(ours::Callback::sent)>::value, "sent");
static_assert(Alike<ucp_am_recv_data_nbx_callback_t, decltype(ours::Callback::received)>::value,
              "received");
static_assert(Alike<ucp_err_handler_cb_t, decltype(ours::ErrorHandler::call)>::value, "errors");

}  // namespace

int main() {}
