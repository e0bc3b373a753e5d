// NCCL's functions, as clients call them. Each is exported as pncclX, and as ncclX, which is weak.
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nccl/abi.hpp"
#include "nccl/comm.hpp"
#include "nccl/errors.hpp"
#include "nccl/real.hpp"

using namespace sley::nccl;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define OWN(result, name, since, parameters, arguments) \
    EXPORT result pnccl##name parameters;               \
    EXPORT result nccl##name parameters __attribute__((weak, alias("pnccl" #name)));
#define PASSED OWN
#include "nccl/functions.def"

namespace {

struct Name {
    const char* text;
    const char* since;
};
#define OWN(result, name, since, parameters, arguments) \
    [[maybe_unused]] constexpr Name k##name{"nccl" #name, #since};
#define PASSED OWN
#include "nccl/functions.def"

// What a function returns if a call fails: its result if it has one.
template <class Value>
Value failed([[maybe_unused]] Result result) {
    if constexpr (std::is_same_v<Value, Result>) {
        return result;
    } else if constexpr (std::is_same_v<Value, int>) {
        return -1;
    } else {
        return Value();
    }
}

// The real library's handles in place of sley's, among the arguments of a call. Others stay.
class Translation {
public:
    // The communicator first, which knows the reductions by their numbers.
    template <class... Values>
    Result operator()(const Name& name, Values&... values) {
        (comm(name, values), ...);
        (op(name, values), ...);
        return result_;
    }

private:
    template <class Value>
    void comm(const Name&, Value&) {}
    void comm(const Name& name, Handle*& handle) {
        const auto found = Comm::find(handle);
        if (!found.is_sleys) return;
        comm_ = found.comm;
        if (comm_ != nullptr) {
            handle = comm_->real();
        } else {
            result_ = refuse(Result::kInvalidArgument, "N703",
                             std::string("a communicator for ") + name.text,
                             "one that was destroyed or aborted",
                             "Make calls before the communicator's end.");
        }
    }
    template <class Value>
    void op(const Name&, Value&) {}
    void op(const Name& name, RedOp& op) {
        if (comm_ == nullptr || comm_->find_op(op)) return;
        result_ = refuse(Result::kInvalidArgument, "N703",
                         std::string("a reduction for ") + name.text + " of the communicator",
                         "number " + std::to_string(static_cast<int>(op)),
                         "Make the reduction for this communicator, and destroy it after its use.");
    }

    Comm* comm_ = nullptr;
    Result result_ = Result::kSuccess;
};

// A call of the real function.
template <class Value, class... Values>
struct Passing {
    const Name& name;
    Value (*function)(Values...);

    Value operator()(Values... values) const {
        if (function == nullptr) return failed<Value>(lacking(name.text, name.since));
        const auto translated = Translation()(name, values...);
        if (translated != Result::kSuccess) return failed<Value>(translated);
        if constexpr (std::is_same_v<Value, Result>) {
            const auto result = function(values...);
            heard(result);
            return result;
        } else {
            return function(values...);
        }
    }
};
template <class Value, class... Values>
Passing(const Name&, Value (*)(Values...)) -> Passing<Value, Values...>;

// Makes the communicators that `call` makes at the given places. Each `*out` has sley's handle
// before the call, because another thread may abort what blocks here.
template <class Call>
Result make(const Name& name, Handle** out, int count, const std::string& what, Call call) {
    // The real library refuses these.
    if (out == nullptr || count < 1) return call(out);
    std::vector<Comm*> comms;
    for (int i = 0; i < count; ++i) {
        comms.push_back(Comm::make());
        if (comms.back() != nullptr) continue;
        for (int before = 0; before < i; ++before) comms[before]->end();
        return refuse(Result::kSystemError, "N703", "at most 65,536 communicators in a process",
                      "one more", "Destroy communicators that are no longer used.");
    }
    for (int i = 0; i < count; ++i) out[i] = comms[i]->handle();
    Result result;
    if (count == 1) {
        result = call(comms.front()->place());
    } else {
        // NCCL writes the communicators of InitAll in the call itself, not later.
        std::vector<Handle*> real(count, nullptr);
        result = call(real.data());
        for (int i = 0; i < count; ++i) *comms[i]->place() = real[i];
    }
    for (int i = 0; i < count; ++i) group.add(&out[i], comms[i], result);
    if (!is_error(result) && is_logging()) {
        log(std::string(name.text) + what + ": all calls go to NCCL " + real().version);
    }
    return result;
}

std::string place(int rank, int ranks, const Config* config = nullptr) {
    std::string text = " of rank " + std::to_string(rank) + " of " + std::to_string(ranks);
    constexpr auto kEnd = offsetof(Config, commName) + sizeof(Config::commName);
    if (config == nullptr || config->magic != kMagic || config->size < kEnd) return text;
    return config->commName == nullptr ? text : text + ", " + config->commName;
}

Result end(const Name& name, Result (*function)(Handle*), Handle* handle) {
    const auto result = Passing{name, function}(handle);
    // With an error the communicator is still there, and may be aborted; in progress it is asked
    // for its state.
    Comm* comm = Comm::find(handle).comm;
    if (result == Result::kSuccess && comm != nullptr) comm->end();
    return result;
}

constexpr int kNoColor = -1;

}  // namespace

#define PASS(name) Passing{k##name, real().name}
#define PASSED(result, name, since, parameters, arguments) \
    EXPORT result pnccl##name parameters { return PASS(name) arguments; }
#define OWN(result, name, since, parameters, arguments)
#include "nccl/functions.def"

EXPORT Result pncclCommInitRank(Handle** comm, int ranks, UniqueId id, int rank) {
    return make(kCommInitRank, comm, 1, place(rank, ranks), [&](Handle** out) {
        return PASS(CommInitRank)(out, ranks, id, rank);
    });
}

EXPORT Result pncclCommInitRankConfig(Handle** comm, int ranks, UniqueId id, int rank,
                                      Config* config) {
    return make(kCommInitRankConfig, comm, 1, place(rank, ranks, config), [&](Handle** out) {
        return PASS(CommInitRankConfig)(out, ranks, id, rank, config);
    });
}

EXPORT Result pncclCommInitRankScalable(Handle** comm, int ranks, int rank, int ids,
                                        UniqueId* first, Config* config) {
    return make(kCommInitRankScalable, comm, 1, place(rank, ranks, config), [&](Handle** out) {
        return PASS(CommInitRankScalable)(out, ranks, rank, ids, first, config);
    });
}

EXPORT Result pncclCommInitAll(Handle** comm, int devices, const int* ordinals) {
    return make(kCommInitAll, comm, devices, " of " + std::to_string(devices) + " ranks",
                [&](Handle** out) { return PASS(CommInitAll)(out, devices, ordinals); });
}

EXPORT Result pncclCommSplit(Handle* comm, int color, int key, Handle** made, Config* config) {
    const auto split = [&](Handle** out) {
        return PASS(CommSplit)(comm, color, key, out, config);
    };
    // It gets a null, at once or when the others' communicators are made.
    if (color == kNoColor) return split(made);
    return make(kCommSplit, made, 1, " of color " + std::to_string(color), split);
}

EXPORT Result pncclCommShrink(Handle* comm, int* excluded, int count, Handle** made,
                              Config* config, int flags) {
    return make(kCommShrink, made, 1, "", [&](Handle** out) {
        return PASS(CommShrink)(comm, excluded, count, out, config, flags);
    });
}

EXPORT Result pncclCommGrow(Handle* comm, int ranks, const UniqueId* id, int rank, Handle** made,
                            Config* config) {
    return make(kCommGrow, made, 1, " to " + std::to_string(ranks), [&](Handle** out) {
        return PASS(CommGrow)(comm, ranks, id, rank, out, config);
    });
}

EXPORT Result pncclCommDestroy(Handle* comm) {
    return end(kCommDestroy, real().CommDestroy, comm);
}

EXPORT Result pncclCommAbort(Handle* comm) { return end(kCommAbort, real().CommAbort, comm); }

EXPORT Result pncclCommGetAsyncError(Handle* comm, Result* state) {
    const auto result = PASS(CommGetAsyncError)(comm, state);
    if (result == Result::kSuccess) heard(*state);
    return result;
}

EXPORT const char* pncclGetErrorString(Result result) {
    const auto function = real().GetErrorString;
    return function != nullptr ? function(result) : name_of(result);
}

EXPORT const char* pncclGetLastError(Handle*) {  // NCCL doesn't look at the communicator
    const char* text = own_error();
    if (text == nullptr) text = PASS(GetLastError)(nullptr);
    return text != nullptr ? text : own_error();  // it says that there is no library
}

EXPORT Result pncclRedOpCreatePreMulSum(RedOp* op, void* scalar, int type, int residence,
                                        Handle* comm) {
    const auto result = PASS(RedOpCreatePreMulSum)(op, scalar, type, residence, comm);
    Comm* own = Comm::find(comm).comm;
    if (result != Result::kSuccess || own == nullptr) return result;
    const RedOp made = std::exchange(*op, own->add_op(*op));
    if (*op != RedOp{}) return result;
    real().RedOpDestroy(made, own->real());
    return refuse(Result::kSystemError, "N703", "at most 32,767 reductions of a communicator",
                  "one more", "Destroy reductions that are no longer used.");
}

EXPORT Result pncclRedOpDestroy(RedOp op, Handle* comm) {
    const auto result = PASS(RedOpDestroy)(op, comm);
    Comm* own = Comm::find(comm).comm;
    if (result == Result::kSuccess && own != nullptr) own->find_op(op, true);
    return result;
}

EXPORT Result pncclGroupStart() {
    const auto result = PASS(GroupStart)();
    if (result == Result::kSuccess) ++group.depth;
    return result;
}

EXPORT Result pncclGroupEnd() {
    const auto result = PASS(GroupEnd)();
    group.end(result);
    return result;
}

EXPORT Result pncclGroupSimulateEnd(void* info) {
    const auto result = PASS(GroupSimulateEnd)(info);
    group.end(result);
    return result;
}
