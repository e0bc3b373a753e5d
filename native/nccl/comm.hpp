// Communicators as callers hold them, and the calls of a thread between GroupStart and GroupEnd.
#pragma once

#include <mutex>
#include <vector>

#include "nccl/abi.hpp"

namespace sley::nccl {

// The real library writes `real`, too: that of a split from a thread of its own, any time until the
// parent is ready. So a Comm stays where it is for the life of the process; after its end another
// communicator takes its place, the oldest place first.
class Comm {
public:
    // Null until there is a real one; the real library refuses calls with a null.
    Handle* real() const { return __atomic_load_n(&real_, __ATOMIC_ACQUIRE); }
    Handle** place() { return &real_; }
    Handle* handle();  // what callers hold

    // Reductions that were made for this communicator have numbers of sley's: the real library's
    // are known only to its own communicator, which may come later than sley's.
    static constexpr std::size_t kMostOps = 32767;  // so that numbers stay below 2^31
    RedOp add_op(RedOp real);  // a built-in one if there are as many as there can be
    // False for one that isn't this communicator's.
    bool find_op(RedOp& op, bool forgets = false);

    // A communicator without a real one yet; null if there are as many as there can be.
    static Comm* make();
    void end();

    struct Found {
        Comm* comm;      // null unless it is sley's, and alive
        bool is_sleys;
    };
    // Never looks into a handle: the real library calls back with its own.
    static Found find(const Handle* handle);

private:
    explicit Comm(std::size_t number) : number_(number) {}

    Handle* real_ = nullptr;
    const std::size_t number_;  // of its place
    std::mutex mutex_;
    std::vector<RedOp> ops_;  // the real ones; a built-in one marks a free number
};

// The calls of a thread since the first GroupStart. Without a destructor: clients end groups in
// destructors of their own, when the process exits.
struct Group {
    struct Made {
        Handle** out;
        Comm* comm;
    };

    // A communicator is being made: `*out` has its handle, and gets null where it fails.
    void add(Handle** out, Comm* comm, Result result);
    void end(Result result);

    int depth;
    std::vector<Made>* made;  // null while there are none
};
extern thread_local Group group;

}  // namespace sley::nccl
