// NCCL's functions, as clients call them: those that are passed on, errors, reductions and groups.
#include <utility>

#include "nccl/collectives.hpp"
#include "nccl/errors.hpp"
#include "nccl/group.hpp"
#include "nccl/passing.hpp"
#include "nccl/real.hpp"

namespace sley::nccl {

#define PASSED(result, name, since, parameters, arguments) \
    FUNCTION(result, name, parameters) { return PASS(name) arguments; }
#define OWN(result, name, since, parameters, arguments)
#include "nccl/functions.def"

FUNCTION(const char*, GetErrorString, (Result result)) {
    const auto function = real().GetErrorString;
    return function != nullptr ? function(result) : name_of(result);
}

// Without NCCL the first version with AlltoAll, Gather and Scatter: clients ask for it before they use
// what came later, which sley lacks.
FUNCTION(Result, GetVersion, (int* version)) {
    if (version == nullptr || !Settings::from_environment().is_alone()) {
        return PASS(GetVersion)(version);
    }
    *version = 22803;
    return Result::kSuccess;
}

FUNCTION(const char*, GetLastError, (Handle*)) {  // NCCL doesn't look at the communicator
    const char* text = own_error();
    if (text == nullptr && Settings::from_environment().is_alone()) return "";
    if (text == nullptr) text = PASS(GetLastError)(nullptr);
    return text != nullptr ? text : own_error();  // it says that there is no library
}

FUNCTION(Result, RedOpCreatePreMulSum, (RedOp* op, void* scalar, int type, int residence,
                                        Handle* comm)) {
    Comm* own = Comm::find(comm).comm;
    Comm::Op made;
    auto result = Result::kSuccess;
    if (own != nullptr && own->engine() != nullptr) {
        result = group.note(scale(kRedOpCreatePreMulSum.text, op, scalar, type, residence, made));
    } else {
        result = PASS(RedOpCreatePreMulSum)(op, scalar, type, residence, comm);
        if (op != nullptr) made.real = *op;
    }
    if (result != Result::kSuccess || own == nullptr) return result;
    *op = own->add_op(made);
    if (*op != RedOp{}) return result;
    if (made.real != RedOp{}) real().RedOpDestroy(made.real, own->real());
    return refuse(Result::kSystemError, "N703", "at most 32,767 reductions of a communicator",
                  "one more", "Destroy reductions that are no longer used.");
}

FUNCTION(Result, RedOpDestroy, (RedOp op, Handle* comm)) {
    Comm* own = Comm::find(comm).comm;
    if (own != nullptr && group.delays(*own)) {  // the group's calls may have it
        return pass_together(*own, kRedOpDestroy.text, "", [=] { return pncclRedOpDestroy(op, comm); });
    }
    if (own != nullptr && own->engine() != nullptr) {
        const auto made = own->op_of(op, true);
        if (!made) return group.note(no_reduction(kRedOpDestroy.text, op));
        if (made->real == RedOp{}) return Result::kSuccess;
        const auto result = real().RedOpDestroy(made->real, own->real());
        heard(result);
        return result;
    }
    const auto result = PASS(RedOpDestroy)(op, comm);
    if (result == Result::kSuccess && own != nullptr) own->op_of(op, true);
    return result;
}

FUNCTION(Result, GroupStart, ()) { return group.start(); }

FUNCTION(Result, GroupEnd, ()) { return group.end(); }

FUNCTION(Result, GroupSimulateEnd, (void* info)) {
    return group.simulate_end(static_cast<Estimate*>(info));
}

}  // namespace sley::nccl
