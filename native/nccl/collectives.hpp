// NCCL's collective calls, as sley runs them.
#pragma once

#include <cstddef>

#include "nccl/comm.hpp"

namespace sley::nccl {

// A collective as its caller gave it.
struct Collective {
    const char* kind;  // "all_reduce": of LinkTables' rows
    const void* send;
    void* receive;
    std::size_t count;
    int type;
    RedOp op;
    int root;
    void* stream;
};

// Whether sley runs it on `comm`, which has an engine: decided from what is equal on all ranks (kind,
// type, operation, count, the communicator's tables) and nothing else.
bool is_sleys(Comm& comm, const Collective& call);
// NCCL's checks, before anything is queued.
Result check(Comm& comm, const Collective& call);
// Starts it; doesn't wait.
Result launch(Comm& comm, const Collective& call);

}  // namespace sley::nccl
