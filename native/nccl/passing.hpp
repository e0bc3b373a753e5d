// How calls are exported, and passed on to the real library.
#pragma once

#include <exception>
#include <string>
#include <type_traits>

#include "devices/cuda_errors.hpp"
#include "nccl/abi.hpp"
#include "nccl/comm.hpp"
#include "nccl/errors.hpp"
#include "nccl/group.hpp"
#include "nccl/real.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace sley::nccl {

#define OWN(result, name, since, parameters, arguments) EXPORT result pnccl##name parameters;
#define PASSED OWN
#include "nccl/functions.def"

// Defines a function under both names: with a p, and without it, which is weak.
#define FUNCTION(result, name, parameters)                                           \
    EXPORT result nccl##name parameters __attribute__((weak, alias("pnccl" #name))); \
    EXPORT result pnccl##name parameters

struct Name {
    const char* text;
    const char* since;
};
#define OWN(result, name, since, parameters, arguments) \
    [[maybe_unused]] inline constexpr Name k##name{"nccl" #name, #since};
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

// What `work` returns; callers are C. part: of a call that other ranks make, too. All refuse what they
// find alike, and a caller may mend its stream or capture (K517, K518); for what else fails on this rank
// the others would wait, so the part is given up.
template <class Work>
Result guarded(const Work& work, Part* part = nullptr) {
    const auto fail = [part](Result result, const Refusal& why) {
        if (part != nullptr) part->give_up(why);
        return refuse(result, why);
    };
    try {
        return work();
    } catch (const Refusal& why) {
        return refuse(Result::kInvalidArgument, why);
    } catch (const cuda::Error& error) {
        const auto why = cuda::refusal_of(error);
        if (why.rule == "K517") return refuse(Result::kInvalidArgument, why);
        if (why.rule == "K518") return refuse(result_of(why), why);
        return fail(result_of(why), why);
    } catch (const std::exception& error) {
        return fail(Result::kInternalError, {"K516", "a call to start", error.what()});
    }
}

// Why no call can be made with a handle of sley's; null if one can.
inline const char* unready(const Comm::Found& found) {
    if (found.is_inherited) return "one of the process that forked this one";
    return found.comm == nullptr ? "one that was destroyed or aborted" : found.comm->unready();
}

// The communicator of a call that can be made, if it was opened; else null.
inline Comm* ready(const Handle* handle) {
    const auto found = Comm::find(handle);
    return unready(found) == nullptr && found.comm->is_opened() ? found.comm : nullptr;
}

// The same, if no real library knows it.
inline Comm* alone(const Handle* handle) {
    Comm* comm = ready(handle);
    return comm == nullptr || comm->real() != nullptr ? nullptr : comm;
}

// A call of all ranks that the real library runs: passed on, when there is a real communicator. lacks: why
// there can't be one now.
template <class Call>
Result pass_together(Comm& comm, const char* function, std::string lacks, const Call& call) {
    if (!comm.awaits_real()) return call();
    return group.add({{&comm, comm.part(), function, std::move(lacks)}, call});
}

inline Result no_reduction(const char* function, RedOp op) {
    return refuse(Result::kInvalidArgument, "N703",
                  std::string("a reduction for ") + function + " of the communicator",
                  "number " + std::to_string(static_cast<int>(op)),
                  "Make the reduction for this communicator, and destroy it after its use.");
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
        if (const auto why = unready(found)) {
            result_ = refuse(Result::kInvalidArgument, "N703",
                             std::string("a communicator for ") + name.text, why,
                             "Make calls while the communicator is there.");
        } else {
            handle = comm_->real();
            if (handle != nullptr || !comm_->is_opened()) return;
            result_ = comm_->refuse_without_real(std::string("NVIDIA's NCCL for ") + name.text);
        }
    }
    template <class Value>
    void op(const Name&, Value&) {}
    void op(const Name& name, RedOp& op) {
        // The real library judges negative ones.
        if (comm_ == nullptr || is_error(result_) || static_cast<int>(op) < kBuiltInOps) return;
        result_ = comm_->op_of(op) ? comm_->real_op(op) : no_reduction(name.text, op);
    }

    Comm* comm_ = nullptr;
    Result result_ = Result::kSuccess;
};

// A call of the real function. The library is looked for at the call: where there is none, that takes
// long, each time, and sley's own calls don't need it.
template <class Value, class... Values>
struct Passing {
    const Name& name;
    Value (*Real::*member)(Values...);

    Value operator()(Values... values) const {
        auto refused = Translation()(name, values...);
        const auto function = refused == Result::kSuccess ? real().*member : nullptr;
        if (function == nullptr && refused == Result::kSuccess) {
            refused = lacking(name.text, name.since);
        }
        if (refused != Result::kSuccess) return failed<Value>(group.note(refused));
        if constexpr (std::is_same_v<Value, Result>) {
            const auto result = function(values...);
            heard(result);
            // What the real library refuses of a communicator, its group knows.
            return (std::is_same_v<Values, Handle*> || ...) ? group.note(result, true) : result;
        } else {
            return function(values...);
        }
    }
};
template <class Value, class... Values>
Passing(const Name&, Value (*Real::*)(Values...)) -> Passing<Value, Values...>;

#define PASS(name) Passing{k##name, &Real::name}

}  // namespace sley::nccl
