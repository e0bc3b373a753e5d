// The calls of a thread between GroupStart and GroupEnd.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nccl/collectives.hpp"
#include "nccl/comm.hpp"
#include "nccl/opening.hpp"

namespace sley::nccl {

// The refusal of a communicator, if there are as many as there can be.
Result no_place();

// Without a destructor: clients end groups in destructors of their own, when the process exits.
struct Group {
    using Launch = Result (*)(Part&, const Collective&);

    struct Made {
        Handle** out;
        Comm* comm;
    };
    struct Call {
        std::shared_ptr<Part> part;  // lasts until the group's end, whoever aborts
        Collective collective;
        Launch launch;
        std::size_t round;  // how many calls of its rank are before it
    };
    // One that needs a real communicator which isn't there yet, with its arguments.
    struct Late {
        Completion completion;
        std::function<Result()> call;
    };
    struct Sent {  // or to be received
        std::shared_ptr<Part> part;
        StreamMessage message;
    };
    struct Closing {
        std::shared_ptr<Part> part;
        bool waits;
    };

    Result start();
    // The first error of the group's calls; otherwise the communicators that are made in it are there,
    // or in progress, and its calls are launched.
    Result end();
    // Launches nothing. The time is -1, NCCL's word for none, if sley runs calls of the group.
    Result simulate_end(Estimate* estimate);

    // A communicator that the real library makes: `*out` has its handle, and gets null where it fails.
    void add(Handle** out, Comm* comm, Result result);
    // One that sley and the real library make: now, at the group's end, or in a thread. out: null if
    // this rank has no part in it.
    Result add(const std::shared_ptr<Opening>& opening, Handle** out);
    // A collective that sley runs, and that `prepare` has let pass: launched now, or at the end.
    Result add(std::shared_ptr<Part> part, const Collective& call, Launch launch);
    // A call for which all ranks make the real communicator: both now, or at the group's end, or in a
    // thread.
    Result add(Late late);
    // Whether a call of a communicator is made so at the group's end.
    bool delays(const Comm& comm) const;
    // A message that sley runs: started now, or at the end, after the collectives.
    Result add(std::shared_ptr<Part> part, const StreamMessage& message);
    // A rank that is closed now, or after the calls of the group. waits: until it is.
    void close(std::shared_ptr<Part> part, bool waits);
    // What a call in the group returns. is_known: to the real library's group, too.
    Result note(Result result, bool is_known = false);

    int depth;
    int real_depth;  // of the real library's group
    Result error;    // the first one
    bool is_known;
    std::vector<Made>* made;  // null while there are none
    std::vector<std::shared_ptr<Opening>>* openings;
    std::vector<Late>* lates;
    std::vector<Call>* calls;
    std::vector<Sent>* messages;
    std::vector<Closing>* closing;

private:
    // Makes the communicators of openings and late calls, then these calls.
    Result make();
    Result end_real();
    void clear(Result result);
};
extern thread_local Group group;

}  // namespace sley::nccl
