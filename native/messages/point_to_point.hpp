// Messages between two ranks, with tags, as in MPI and torch.distributed.
//
// Messages from one rank to another with the same tag arrive in the order of sending, and a receive
// takes the first one from its source with its tag (matching.hpp). Operations with different ranks
// don't delay one another, in any order of posting.
//
// A waiting thread makes progress on all operations: the callers of `send_now`, `recv_now` and
// `wait`, and, if no caller waits, a thread of the object: at once where something large is pending
// or another host waits, otherwise after a moment, since callers mostly wait for what they begin.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "fabric/fabric.hpp"
#include "fabric/outcome.hpp"
#include "messages/matching.hpp"

namespace sley {

// An operation ends as kDone (rank: the other rank, bytes: of the message); kMismatched, a receive
// of another size or type than the message's (rank: its source, bytes: of the message); kStalled, when
// it hasn't moved for its own timeout (rank: the one it waited for); or kAborted, because of a failure
// that `Control` has, or because the object is closed. All but kDone and closing fail the fabric. A
// send is done when its data may be overwritten: the message may still be in flight.
class PointToPoint {
public:
    // As `Matching`.
    PointToPoint(std::shared_ptr<Fabric> fabric, std::int32_t stride, std::int32_t offset);
    // Closes. No other thread may be in a function of the object.
    ~PointToPoint();

    PointToPoint(const PointToPoint&) = delete;
    PointToPoint& operator=(const PointToPoint&) = delete;

    // src: a rank or kAnySource. type: the caller's number of the elements' type; 0: any. The memory
    // belongs to the operation until the ticket ends, which may be at once. Throw std::invalid_argument for a rank that doesn't exist or a negative size;
    // std::bad_alloc and std::system_error if there is no memory for the connection or for a
    // message to the rank itself.
    std::shared_ptr<Ticket> send(const std::byte* data, std::int64_t bytes, std::int32_t dst,
                                 std::int64_t tag, double timeout_s, std::int32_t type = 0);
    std::shared_ptr<Ticket> recv(std::byte* data, std::int64_t bytes, std::int32_t src,
                                 std::int64_t tag, double timeout_s, std::int32_t type = 0);

    // The same, waiting for the end in the caller's thread.
    Outcome send_now(const std::byte* data, std::int64_t bytes, std::int32_t dst, std::int64_t tag,
                     double timeout_s, std::int32_t type = 0);
    Outcome recv_now(std::byte* data, std::int64_t bytes, std::int32_t src, std::int64_t tag,
                     double timeout_s, std::int32_t type = 0);

    // Like ticket.wait, but makes progress meanwhile, which is faster than leaving it to the
    // thread.
    bool wait(Ticket& ticket, double timeout_s);
    // Makes progress once; whether the operation has ended.
    bool test(Ticket& ticket);

    // Ends the thread, and, as kAborted, all pending and later operations. The callbacks of tickets
    // must be able to run meanwhile.
    void close();

private:
    using Lock = std::unique_lock<std::mutex>;
    using Clock = Matching::Clock;

    Lock enter();
    std::shared_ptr<Ticket> submit(Operation&& operation);
    Outcome perform(Operation&& operation);
    void start(Operation& operation);

    void run();
    bool needs_thread();
    bool is_urgent();
    bool has_unsettled();
    template <class Done>
    void drive(Lock& lock, const Done& done, Clock::time_point until = Clock::time_point::max());
    void hand_over(Lock& lock);
    void end_tickets(Lock& lock);
    void look(Lock& lock);
    Bell& bell() const { return fabric_->control().bell(); }
    bool has_remote() const { return fabric_->control().has_remote(); }

    std::shared_ptr<Fabric> fabric_;
    std::mutex mutex_;             // of the members below
    std::atomic<int> waiting_{0};  // threads that wait for the mutex
    Matching matching_;
    int asynchronous_ = 0;  // operations whose tickets have not ended
    int large_ = 0;         // those of them that move much
    int synchronous_ = 0;   // callers in `drive`
    int drivers_ = 0;       // threads in `drive`
    Clock::time_point looked_{};
    bool is_closed_ = false;
    bool is_asleep_ = false;  // the thread, until it is woken
    std::condition_variable wake_;
    std::thread thread_;
};

}  // namespace sley
