// NCCL's functions, as clients call them: those that are passed on, errors, reductions and groups.
#include <utility>

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

FUNCTION(const char*, GetLastError, (Handle*)) {  // NCCL doesn't look at the communicator
    const char* text = own_error();
    if (text == nullptr) text = PASS(GetLastError)(nullptr);
    return text != nullptr ? text : own_error();  // it says that there is no library
}

FUNCTION(Result, RedOpCreatePreMulSum, (RedOp* op, void* scalar, int type, int residence,
                                        Handle* comm)) {
    const auto result = PASS(RedOpCreatePreMulSum)(op, scalar, type, residence, comm);
    Comm* own = Comm::find(comm).comm;
    if (result != Result::kSuccess || own == nullptr) return result;
    const RedOp made = std::exchange(*op, own->add_op(*op));
    if (*op != RedOp{}) return result;
    real().RedOpDestroy(made, own->real());
    return refuse(Result::kSystemError, "N703", "at most 32,767 reductions of a communicator",
                  "one more", "Destroy reductions that are no longer used.");
}

FUNCTION(Result, RedOpDestroy, (RedOp op, Handle* comm)) {
    const auto result = PASS(RedOpDestroy)(op, comm);
    Comm* own = Comm::find(comm).comm;
    if (result == Result::kSuccess && own != nullptr) own->find_op(op, true);
    return result;
}

FUNCTION(Result, GroupStart, ()) { return group.start(); }

FUNCTION(Result, GroupEnd, ()) { return group.end(); }

FUNCTION(Result, GroupSimulateEnd, (void* info)) { return group.simulate_end(info); }

}  // namespace sley::nccl
