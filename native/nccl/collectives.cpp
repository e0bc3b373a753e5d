#include "nccl/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "devices/cuda_device.hpp"
#include "engine/reduce.hpp"
#include "nccl/passing.hpp"

namespace sley::nccl {
namespace {

// By NCCL's numbers: the engine's types, and the bits of 1 in those of which NCCL's AVG multiplies
// inputs by 1/n before it adds them. It divides sums of the others.
struct Type {
    DataType type;
    std::uint64_t one;
};
constexpr Type kTypes[] = {
    {DataType::kInt8, 0},
    {DataType::kUint8, 0},
    {DataType::kInt32, 0},
    {DataType::kUint32, 0},
    {DataType::kInt64, 0},
    {DataType::kUint64, 0},
    {DataType::kFloat16, 0x3c00},
    {DataType::kFloat32, 0x3f800000},
    {DataType::kFloat64, 0x3ff0000000000000},
    {DataType::kBfloat16, 0x3f80},
    {DataType::kFloat8E4m3fn, 0x38},
    {DataType::kFloat8E5m2, 0x3c},
};
constexpr int kTypesCount = sizeof kTypes / sizeof *kTypes;

constexpr int kHostImmediate = 1;  // where a scalar is: on the host, read at once

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin,
                             ReduceOp::kAverage};
static_assert(sizeof kOps / sizeof *kOps == kBuiltInOps);

// As which elements are moved where nothing is reduced: their bytes are all that counts.
DataType moved(std::size_t item) {
    switch (item) {
        case 1: return DataType::kInt8;
        case 2: return DataType::kInt16;
        case 4: return DataType::kInt32;
        default: return DataType::kInt64;
    }
}

Result wrong(const char* function, const std::string& expected, const std::string& found) {
    return refuse(Result::kInvalidArgument, "N705", expected + " for " + function, found,
                  "Correct the call, on all ranks alike.");
}

Result check_type(const char* function, int type) {
    if (type >= 0 && type < kTypesCount) return Result::kSuccess;
    return wrong(function, "a type from 0 to " + std::to_string(kTypesCount - 1),
                 std::to_string(type));
}

// Sets the operation and the factor of a call. Refuses a reduction that isn't the communicator's, or of
// another type.
Result set_reduction(Comm& comm, const char* function, const Request& request, Collective& call) {
    const auto& [type, one] = kTypes[request.type];
    const int op = static_cast<int>(request.op);
    call.program.dtype = static_cast<int>(type);
    if (op < 0 || op >= kBuiltInOps) {
        const auto own = comm.op_of(request.op);
        if (!own) return no_reduction(function, request.op);
        if (own->type != request.type) {
            return wrong(function, "data of the reduction's type, " + std::to_string(own->type),
                         "type " + std::to_string(request.type));
        }
        call.program.scales = true;
        call.values.factor = own->factor;
        call.values.factor_at = own->factor_at;
    } else if (kOps[op] == ReduceOp::kAverage && one != 0) {
        call.program.scales = true;
        call.values.factor = one;  // its first bytes, on little-endian machines
        divide_kernel(type)(reinterpret_cast<std::byte*>(&call.values.factor), comm.ranks, 1);
    } else {
        call.program.op = static_cast<int>(kOps[op]);
    }
    return Result::kSuccess;
}

// Why a communicator's calls can't run.
Result check_part(const Comm& comm, const Part& part, const char* function) {
    if (comm.is_revoked()) {
        return refuse(Result::kInvalidUsage, "N703", std::string("a communicator for ") + function,
                      "one that was revoked", "Make calls before.");
    }
    return part.failure();
}

// which: "root" or "peer".
Result check_rank(const Comm& comm, const char* function, const char* which, int rank) {
    if (rank >= 0 && rank < comm.ranks) return Result::kSuccess;
    return wrong(function, std::string("a ") + which + " from 0 to " + std::to_string(comm.ranks - 1),
                 std::to_string(rank));
}

// parts: the elements are this many times `count`.
Result check_count(const char* function, std::size_t count, std::size_t item, std::size_t parts) {
    const auto most = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
    if (count <= most / item / parts) return Result::kSuccess;
    return wrong(function, "buffers of less than 2^63 bytes", std::to_string(count) + " elements");
}

// What is wrong with a buffer; empty if nothing is.
std::string problem(const CudaDevice& device, std::uint64_t address, std::size_t item) {
    if (address == 0) return "a null pointer";
    char text[32];
    std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(address));
    if (address % item != 0) return std::string(text) + ", which is no multiple of that";
    const auto place = device.place_of(address);
    if (!place) return std::string(text) + ", which the driver doesn't know";
    if (place->ordinal == device.ordinal() || place->is_everywhere) return {};
    return std::string(text) + ", which is on device " + std::to_string(place->ordinal);
}

// Sets the buffers that a call uses. Refuses what kernels couldn't.
Result set_buffers(const Comm& comm, const char* function, const Request& request, const Kind& kind,
                   const CudaDevice& device, Collective& call) {
    if (call.size_bytes == 0) return Result::kSuccess;
    const auto item = static_cast<std::size_t>(call.values.item_bytes);
    // Of calls with a root, it alone receives, or it alone sends.
    const bool is_root = !kind.has_root || request.root == comm.rank;
    const bool unites = kind.reduces || kind.output_parts;
    const struct {
        const char* what;
        const void* memory;
        bool is_used, has_parts;
    } given[] = {{"what is sent", request.send, is_root || unites, kind.input_parts},
                 {"where it is received", request.receive, is_root || !unites, kind.output_parts}};
    for (int i = 0; i < 2; ++i) {
        const auto& [what, memory, is_used, has_parts] = given[i];
        if (!is_used) continue;
        const auto address = reinterpret_cast<std::uint64_t>(memory);
        const bool is_known = i == 1 && address != 0 && address == call.buffers.addresses[0];
        if (const auto found = is_known ? "" : problem(device, address, item); !found.empty()) {
            return wrong(function,
                         "memory of " + device.name() + " for elements of " +
                             std::to_string(item) + " bytes, as " + what,
                         found);
        }
        call.buffers.addresses[i] = address;
        call.buffers.bytes[i] = request.count * item * (has_parts ? comm.ranks : 1);
    }
    if (kind.input_parts && kind.output_parts && request.send == request.receive) {
        return wrong(function, "two buffers", "one");
    }
    return Result::kSuccess;
}

}  // namespace

Result scale(const char* function, const RedOp* op, const void* scalar, int type, int residence,
             Comm::Op& made) {
    const auto result = check_type(function, type);
    if (result != Result::kSuccess) return result;
    if (op == nullptr || scalar == nullptr) {
        return wrong(function, op == nullptr ? "a place of the reduction" : "a scalar", "a null pointer");
    }
    made.type = type;
    if (residence == kHostImmediate) {
        std::memcpy(&made.factor, scalar, item_size(kTypes[type].type));
    } else {
        made.factor_at = reinterpret_cast<std::uintptr_t>(scalar);
    }
    return result;
}

Result prepare(Comm& comm, Part& part, const char* kind, const char* function,
               const Request& request, std::optional<Collective>& made) {
    auto result = check_part(comm, part, function);
    if (result == Result::kSuccess) result = check_rank(comm, function, "root", request.root);
    const int type = request.type;
    if (result == Result::kSuccess) result = check_type(function, type);
    if (result != Result::kSuccess) return result;
    auto& engine = part.engine();
    const auto& rows = engine.tables().rows;
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const LinkTables::Row& one) {
        return one.call.root == request.root && one.name == kind;
    });
    if (row == rows.end()) return Result::kSuccess;

    const auto item = item_size(kTypes[type].type);
    const auto parts = static_cast<std::size_t>(row->kind.is_update() ? 1 : comm.ranks);
    result = check_count(function, request.count, item, parts);
    if (result != Result::kSuccess) return result;
    Collective call{};
    call.kind = row->call;
    call.size_bytes = request.count * item * parts;
    call.values.item_bytes = static_cast<std::int64_t>(item);
    call.values.count = static_cast<std::int64_t>(request.count);
    call.stream = reinterpret_cast<Device::Stream>(request.stream);
    if (!row->kind.reduces) {
        call.program.dtype = static_cast<int>(moved(item));
    } else {
        result = set_reduction(comm, function, request, call);
        if (result != Result::kSuccess) return result;
    }
    if (!engine.calls().is_ready(call.kind, call.program, call.size_bytes, call.values)) {
        return Result::kSuccess;
    }

    // Only this rank knows the rest.
    result = set_buffers(comm, function, request, row->kind,
                         static_cast<const CudaDevice&>(engine.calls().device()), call);
    if (result == Result::kSuccess) made = call;
    return result;
}

Result prepare(const Comm& comm, Part& part, const char* function, const Request& request,
               std::optional<StreamMessage>& made) {
    auto result = check_part(comm, part, function);
    if (result == Result::kSuccess) result = check_rank(comm, function, "peer", request.root);
    if (result == Result::kSuccess) result = check_type(function, request.type);
    if (result != Result::kSuccess) return result;
    const auto item = item_size(kTypes[request.type].type);
    result = check_count(function, request.count, item, 1);
    if (result != Result::kSuccess || request.count == 0) return result;
    const auto& device = static_cast<const CudaDevice&>(part.engine().calls().device());
    const bool sends = request.receive == nullptr;  // or else it is refused
    const auto address = reinterpret_cast<std::uint64_t>(sends ? request.send : request.receive);
    if (const auto found = problem(device, address, 1); !found.empty()) {
        return wrong(function, "memory of " + device.name(), found);
    }
    made = {{request.root, sends, address, request.count * item},
            reinterpret_cast<Device::Stream>(request.stream)};
    return result;
}

namespace {

// What `start`, which starts calls of a part, comes to.
template <class Start>
Result started(Part& part, const Start& start) {
    const auto begin = [&] {
        auto& engine = part.engine();
        if (start(engine) == StartOutcome::kStarted) return Result::kSuccess;
        if (const auto why = engine.error()) return refuse(part.result_for(*why), *why);
        return is_error(part.failure()) ? part.failure() : Result::kRemoteError;
    };
    return guarded(begin, &part);
}

}  // namespace

Result launch(Part& part, const Collective& call) {
    return started(part, [&](DeviceRank& engine) {
        return engine.calls().start(call.kind, call.program, call.size_bytes, call.values,
                                    call.buffers, call.stream, nullptr);
    });
}

Result launch(Part& part, const std::vector<StreamMessage>& messages) {
    return started(part, [&](DeviceRank& engine) {
        const auto first = messages.front().stream;
        std::vector<DeviceMessage> all;
        std::set<Device::Stream> others;
        for (const auto& [message, stream] : messages) {
            all.push_back(message);
            if (stream != first) others.insert(stream);
        }
        if (others.empty()) return engine.messages().start(all, first);
        const auto& device = engine.calls().device();
        const cuda::Current current(device.context());
        const auto capture = device.look(first, {}).capture;
        for (const auto other : others) {
            if (device.look(other, {}).capture == capture) continue;
            throw Refusal("N705", "a group's sends and receives in one graph, or in none",
                          "streams of which some are captured", {},
                          "Make the group's calls on streams of one capture.");
        }
        const auto event = device.event();
        const auto follow = [&](Device::Stream next, Device::Stream last) {
            device.record(event.address, last, false);
            device.wait(next, event.address, false);
        };
        for (const auto other : others) follow(first, other);
        const auto outcome = engine.messages().start(all, first);
        for (const auto other : others) follow(other, first);
        return outcome;
    });
}

namespace {

constexpr const char* kind_of(std::string_view function) {
    constexpr std::string_view kConfig = "Config";
    for (const auto& [name, kind] : kKinds) {
        if (function == name) return kind;
        const auto size = function.size() - std::min(function.size(), kConfig.size());
        if (function.substr(size) == kConfig && function.substr(0, size) == name) return kind;
    }
    return nullptr;
}

// Of the functions' arguments. What a config asks for changes no results, and is left out.
Request request_of(const void* send, void* receive, std::size_t count, int type, RedOp op, int root,
                   Handle* comm, void* stream, const void* = nullptr) {
    return {send, receive, count, type, op, root, comm, stream};
}
Request request_of(const void* send, void* receive, std::size_t count, int type, RedOp op,
                   Handle* comm, void* stream, const void* = nullptr) {
    return {send, receive, count, type, op, 0, comm, stream};
}
Request request_of(const void* send, void* receive, std::size_t count, int type, int root,
                   Handle* comm, void* stream, const void* = nullptr) {
    return {send, receive, count, type, RedOp{}, root, comm, stream};
}
Request request_of(const void* send, void* receive, std::size_t count, int type, Handle* comm,
                   void* stream, const void* = nullptr) {
    return {send, receive, count, type, RedOp{}, 0, comm, stream};
}
Request request_of(void* buffer, std::size_t count, int type, int root, Handle* comm,
                   void* stream) {
    return {buffer, buffer, count, type, RedOp{}, root, comm, stream};
}
Request request_of(const void* send, std::size_t count, int type, int peer, Handle* comm,
                   void* stream) {
    return {send, nullptr, count, type, RedOp{}, peer, comm, stream};
}

// Says who runs a call for which sley has no kernels, where ranks may think that sley does. Refuses it
// if they have no NCCL.
Result say_lacking(const Comm& comm, Part& part, const char* function, const Request& request) {
    const auto what = std::string(function) + " of type " + std::to_string(request.type) +
                      " and operation " + std::to_string(static_cast<int>(request.op));
    if (comm.real() == nullptr && !comm.awaits_real()) {
        return comm.refuse_without_real("sley's kernels, or NVIDIA's NCCL, for " + what);
    }
    if (is_logging() && !part.has_said_lacking.exchange(true)) {
        log("the first call that NCCL runs, since sley has no kernels for it: " + what);
    }
    return Result::kSuccess;
}

// Whether a call's bits depend on the order: sums of floats round, and of +0 and -0 the later one may
// be a minimum. Integers wrap around.
bool wants_order(const char* kind, int type) {
    const bool is_float = type >= 0 && type < kTypesCount && kTypes[type].one != 0;
    return is_float && std::string_view(kind).find("reduce") != std::string_view::npos &&
           wants_same_bits();
}

Result refuse_order(const char* function) {
    return refuse(Result::kInvalidUsage, "N658", std::string("sums in one order for ") + function,
                  "a call for NCCL, which adds in others",
                  "Mend what keeps sley from it, as NCCL_DEBUG=INFO tells, or unset SLEY_SAME_BITS.");
}

// Why a call can't have a real communicator made: not while a stream is captured.
std::string lacks_real(Part& part, const Request& request) try {
    const auto& device = static_cast<const CudaDevice&>(part.engine().calls().device());
    const auto stream = reinterpret_cast<Device::Stream>(request.stream);
    return device.is_captured(stream) ? "a stream that is captured" : "";
} catch (const cuda::Error& why) {
    return why.what();
}

// A call that sley runs, or passes on, now or later.
template <class Pass, class Later>
Result run(const char* kind, const char* function, const Request& request, const Pass& pass,
           const Later& later) {
    Comm* comm = Comm::find(request.comm).comm;
    const bool in_order = wants_order(kind, request.type);
    if (comm == nullptr || !comm->runs(kind)) {
        return in_order ? group.note(refuse_order(function)) : pass();
    }
    auto part = comm->part();  // another thread may abort the communicator
    const char* why = comm->unready();
    if (why != nullptr || part == nullptr) {
        return group.note(refuse(Result::kInvalidArgument, "N703",
                                 std::string("a communicator for ") + function,
                                 why != nullptr ? why : "one that has ended",
                                 "Make calls while the communicator is there."));
    }
    if (kind == kSendReceive) {
        std::optional<StreamMessage> message;
        const auto prepares = [&] { return prepare(*comm, *part, function, request, message); };
        const auto result = guarded(prepares, part.get());
        return message ? group.add(std::move(part), *message) : group.note(result);
    }
    std::optional<Collective> made;
    const auto prepares = [&] { return prepare(*comm, *part, kind, function, request, made); };
    auto result = guarded(prepares, part.get());
    if (result == Result::kSuccess && !made) {
        result = in_order ? refuse_order(function) : say_lacking(*comm, *part, function, request);
    }
    if (result != Result::kSuccess) return group.note(result);
    if (made) return group.add(std::move(part), *made, launch);
    if (!comm->awaits_real()) return pass();
    return pass_together(*comm, function, lacks_real(*part, request), later);
}

}  // namespace
}  // namespace sley::nccl

using namespace sley::nccl;

#define OWN(result, name, since, parameters, arguments)
#define PASSED OWN
#define RUN(result, name, since, parameters, arguments)                   \
    FUNCTION(result, name, parameters) {                                  \
        constexpr auto kind = kind_of(#name);                             \
        return run(kind, k##name.text, request_of arguments,              \
                   [&] { return PASS(name) arguments; }, [=] {            \
                       /* The caller's may not be there any more. */      \
                       [[maybe_unused]] const void* config = nullptr;     \
                       return PASS(name) arguments;                       \
                   });                                                    \
    }
#include "nccl/functions.def"
