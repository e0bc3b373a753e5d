// Calls on devices: their launches, in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/device.hpp"

namespace sley {

// A call's launches on one stream of a device.
struct Start {
    const Device* device;
    std::vector<Launch> launches;
};

// Serialises calls, since their blocks share connections and counters. All have the same starts.
//
// An event is recorded after each start of a call; the same start of the next call waits for it if
// it is on another stream. The event is recorded at once, since the caller may destroy the stream
// before the next call. A captured start waits for the event, and records it, by nodes of its graph,
// whenever the graph runs. So calls keep the order in which they, or the graphs that contain them,
// are started.
class CallOrder {
public:
    // abort: the word in memory of the host by which a call is given up.
    explicit CallOrder(const std::atomic<std::uint64_t>* abort);
    CallOrder(const CallOrder&) = delete;
    CallOrder& operator=(const CallOrder&) = delete;
    ~CallOrder();

    // Waits until all calls are done, while others may launch. Where calls were captured, it waits
    // for all work of the devices: no event tells that a graph runs. Throws what kernels threw.
    void wait() const;

    // Whether no call is under way; false if calls were captured, since no event tells.
    bool is_idle() const;

    // The calls of all ranks that were started; kUncounted if any were captured, as graphs run.
    static constexpr std::uint64_t kUncounted = ~std::uint64_t{0};
    std::uint64_t calls() const { return has_graphs_ ? kUncounted : calls_.load(); }

    bool is_given_up() const { return abort_->load(std::memory_order_relaxed) != 0; }

    // Joins the orders of other ranks, before any of them starts a call. word: in memory that they
    // share, 0 at first. launches: of a call of this order, by context.
    void join(std::atomic<std::uint64_t>& word,
              const std::map<std::uintptr_t, std::size_t>& launches);

private:
    friend class OrderedCall;

    // Orders of this process that start the same calls, since their kernels wait for one another.
    // launches: of a call of all of them, by context.
    struct Crowd {
        std::map<std::uintptr_t, std::size_t> launches;
    };
    struct Running;

    // Waits for the last milestone.
    void catch_up() const;
    // Whether no call is under way, as far as events tell.
    bool is_over() const;

    struct Mark {  // behind a start
        const Device* device;
        Resource event, milestone;
        Resource branch;            // behind the last start of a capture, for its other streams
        std::uint64_t stream = 0;   // the number of the stream on which it was last recorded
        std::uint64_t capture = 0;  // the number of the last capture that has a start
        bool is_recorded = false;
        bool is_in_graphs = false;  // which record it at any time
    };

    // By context; only in a LaunchTurn.
    static std::map<std::uintptr_t, std::vector<Running>>& running();

    const std::atomic<std::uint64_t>* abort_;
    std::shared_ptr<Crowd> crowd_ = std::make_shared<Crowd>();
    std::uint64_t number_;  // no other order has it
    std::mutex starting_;
    std::uint64_t started_ = 0;  // outside captures
    // Calls of all ranks outside captures, and whether any were captured; other threads read both.
    std::atomic<std::uint64_t> calls_ = 0;
    std::atomic<bool> has_graphs_ = false;
    std::vector<Mark> marks_;
};

// A call on fixed memory, which can be started many times, by one thread at a time.
// Threads may start calls of one order at once.
//
// Calls of several communicators run beside one another if all their blocks fit on each device.
// Otherwise a call waits for those before it, as they were started; each could else fill a device, and
// wait there for its blocks on another. Captured calls don't: nothing tells when their graphs run.
class OrderedCall {
public:
    // Which ranks start it: all of a communicator, in the same order, or others if they like.
    enum class Kind { kOfAllRanks, kOfOneRank };

    OrderedCall(std::shared_ptr<CallOrder> order, std::vector<Start> starts,
                Kind kind = Kind::kOfAllRanks);

    // Starts the call, each start on its stream. recorded: whether the next call has to wait for
    // this one; not if the caller does; frees wait in any case. Returns false, without a launch, if a
    // call was given up. Throws what the devices throw: before anything is started if a stream isn't
    // its device's.
    bool start(const std::vector<Device::Stream>& streams, bool recorded);

    // The arguments of their launches may change between starts.
    std::vector<Start>& starts() { return starts_; }

private:
    void follow(std::size_t k, Device::Stream stream);
    void take_room(const std::vector<Device::Stream>& streams);
    void take_room(std::vector<CallOrder::Running>& running, const std::vector<std::size_t>& starts,
                   const std::vector<Device::Stream>& streams);
    void record(std::size_t k, Device::Stream stream, bool recorded);

    std::shared_ptr<CallOrder> order_;
    Kind kind_;
    std::vector<Start> starts_;
    std::vector<StreamState> states_;  // of each start's stream
    std::size_t turns_ = 0;            // the most launches of a start
    std::vector<double> parts_;        // see Device::part
    std::map<std::uintptr_t, std::vector<std::size_t>> on_;  // the starts on each context
};

}  // namespace sley
