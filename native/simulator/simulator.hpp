// The event loop of the simulator: thread blocks that wait, move data and announce it, over shared
// links (docs/machine.md defines the instructions, docs/simulation.md their costs). Times are in
// us, data in bytes as they cross a link, rates in bytes per us.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include "simulator/sharing.hpp"

namespace sley {

constexpr std::int32_t kNone = -1;
constexpr std::int64_t kBins = 256;  // of time, for the load of links
constexpr double kChecks = 64;  // of the time left, at most, in a run that may end early

// A plan as the simulator's input. One row an instruction, block after block.
struct SimulatorPlan {
    std::vector<std::int64_t> block_offset;   // the first instruction of each block
    std::vector<std::int32_t> call;           // the call that each block is part of
    // CSR: instruction -> the connections on which it sends, and from which it receives.
    std::vector<std::int64_t> send_offset, receive_offset;
    std::vector<std::int32_t> send_target, receive_target;
    std::vector<std::int32_t> messages;       // the messages of an execution
    std::vector<double> chunks;               // the chunks of each message, as on a link
    std::vector<std::int32_t> kind;           // the class of its flows; kNone: it moves nothing
    std::vector<std::int64_t> wait_offset;    // CSR: instruction -> instructions it waits for
    std::vector<std::int32_t> wait_target;
    std::vector<double> begin_us;             // of an execution, after its waits
    std::vector<std::int8_t> instruction_major;  // whether a block runs all tiles of one first
};

// One row a connection. Those with a second hop have a FIFO at each end, and a proxy that posts the
// parts of the first one to the network.
struct SimulatorConnections {
    std::vector<double> fence_us;      // of the sending block, before it goes on
    std::vector<double> latency_us;    // from then, or the second hop's end, until a part is seen
    std::vector<double> credit_us;     // until the other end of a hop sees that room is free
    std::vector<std::int32_t> wire;    // the class of the second hop; kNone: there is none
    std::vector<double> before_us;     // of a second hop's latency: until the hop begins
    std::vector<double> post_us;       // the part of it that the posts of a message take
    std::vector<std::int32_t> post;    // the class of these posts
};

// How a call cuts its chunks. tile_bytes, last_tile_bytes: of one chunk.
struct SimulatorCut {
    std::int64_t tiles = 1;
    double tile_bytes = 0, last_tile_bytes = 0;
};

struct SimulatorSettings {
    std::vector<SimulatorCut> cuts;  // of each call
    std::int64_t slots = 1;
    std::int64_t slices = 1;
    double least_slice_bytes = 0;
    bool whole_posts = false;   // whether proxies post whole messages, not their parts
    double overhead_bytes = 0;  // of every part, besides its data
    double launch_us = 0;
    double until_us = std::numeric_limits<double>::infinity();  // a longer run ends early
    bool records = true;     // whether executions, and loads of links, are recorded
    std::int32_t links = 0;  // the load of resources 0 to links - 1 is recorded
};

// One row an execution, `instruction * tiles + tile`, with the most tiles of a call.
struct Executions {
    std::vector<double> turn_us, start_us, end_us;
    // What the execution waited for last, the end of that wait, and the same before it began to
    // move data.
    std::vector<std::int8_t> cause, first_cause;
    std::vector<std::int64_t> after, first_after;
    std::vector<double> cause_us, moving_us;
};

enum class Cause : std::int8_t { launch, turn, wait, message, slot };

struct SimulatorResult {
    // Per block:
    std::vector<double> end_us, moving_us, waiting_us, message_us, slot_us, overhead_us;
    Executions executions;
    // Per link, and per bin and link:
    std::vector<double> moved_bytes, load_bytes;
    double bin_us = 0;
    // The instructions at which blocks are stuck.
    std::vector<std::int32_t> stuck;
    bool is_whole = true;  // whether all blocks came to their ends
};

// A FIFO in one piece of memory: a connection holds few parts, for which a deque takes 600 bytes.
template <class T>
class Queue {
public:
    bool empty() const { return size_ == 0; }
    T& front() { return items_[first_]; }

    void push_back(const T& item) {
        if (size_ == items_.size()) {
            std::rotate(items_.begin(), items_.begin() + first_, items_.end());
            first_ = 0;
            items_.resize(size_ ? 2 * size_ : 4);  // a power of two, so that a mask wraps places
        }
        items_[(first_ + size_++) & (items_.size() - 1)] = item;
    }

    void pop_front() {
        first_ = (first_ + 1) & (items_.size() - 1);
        --size_;
    }

private:
    std::vector<T> items_;
    std::size_t first_ = 0, size_ = 0;
};

class Simulator {
public:
    Simulator(SimulatorPlan plan, SimulatorConnections connections, FlowClasses classes,
              const std::vector<double>& capacity, const std::vector<double>& gamma,
              SimulatorSettings settings);

    // To be called once.
    SimulatorResult run();

private:
    enum class State : std::int8_t {
        ready, waiting, overhead, message, slot, moving, fence, done
    };
    enum class Kind : std::int8_t { resume, moved, arrive, free, clear, post };

    struct Event {
        double time;
        std::uint64_t number;
        Kind kind;
        std::int32_t id;
        bool operator<(const Event& other) const {  // the queue returns the greatest first
            return time != other.time ? time > other.time : number > other.number;
        }
    };

    // A heap with one event of each flow that moves: its end, which every change of its rate moves.
    // In a queue that only grows until its events are due, most would be out of date.
    class FlowEnds {
    public:
        bool empty() const { return events_.empty(); }
        const Event& top() const { return events_.front(); }
        void resize(std::size_t flows) { place_.assign(flows, kNone); }
        void set(const Event& event);
        void pop();

    private:
        void put(std::size_t place, const Event& event);
        void rise(std::size_t place, const Event& event);
        void sink(std::size_t place, const Event& event);

        std::vector<Event> events_;
        std::vector<std::int32_t> place_;  // of each flow's event; kNone: it has none
    };

    // A row of a CSR.
    struct Targets {
        const std::int32_t* first = nullptr;
        const std::int32_t* last = nullptr;
        const std::int32_t* begin() const { return first; }
        const std::int32_t* end() const { return last; }
        bool empty() const { return first == last; }
    };

    // The execution at which a block is: what its parts need of the plan, and its row of
    // `Executions`. Both stand together here, since an execution has up to a dozen events.
    struct Execution {
        std::int64_t row = 0;
        Targets sends, receives, waits;
        std::int64_t parts = 1;  // of each message
        double part_bytes = 0;
        std::int64_t part = 0;   // of all messages
        bool paid = false;      // whether the overhead has been spent
        double turn_us = 0, start_us = -1, cause_us = 0, moving_us = 0;
        Cause cause = Cause::launch, first_cause = Cause::launch;
        std::int64_t after = kNone, first_after = kNone;
    };

    struct Block {
        std::int64_t instruction, tile = 0;
        Execution at;
        State state = State::ready;
        double since = 0;
        std::int32_t awaited = kNone;  // the connection for which it waits
    };

    // The execution that took a part, and the room that this frees.
    struct Taken {
        std::int64_t execution, room;
    };

    // A part between the FIFOs of a connection with two hops.
    struct Part {
        double ready_us;      // when its proxy sees it
        double bytes, post_us;
        std::int64_t room;    // in units of a slot's smallest part
        std::int64_t after;   // the execution to which it owes its time
    };

    struct Connection {
        std::int64_t credit = 0;   // room for the sender, in units of a slot's smallest part
        std::int64_t arrived = 0;  // parts that the receiver may take
        std::int32_t sender = kNone, receiver = kNone;  // blocks that wait for the connection
        Queue<std::int64_t> sent;  // the executions of parts in flight or not yet taken
        Queue<Taken> freed;        // parts that were taken, until the sender knows
        std::int64_t last_freed = kNone;
        // With two hops: the room for the second one, and who freed it; the parts before and during
        // their posts, then before and on the second hop.
        std::int64_t clear = 0;
        Queue<Taken> clearing;
        std::int64_t last_cleared = kNone;
        Queue<Part> posts, wire;
        bool posting = false, busy = false, blocked = false;
        double last_arrival_us = 0;
    };

    struct Flow {
        double left = 0, since = 0;
    };

    void push(double time, Kind kind, std::int32_t id);
    const Event* next() const;
    bool is_over(double next_us);
    double least_left_us() const;
    void pop(const Event& next);
    void fetch(const Event& event) const;
    void handle(const Event& event);
    void advance(std::int32_t block);
    bool may_begin(std::int32_t block);
    bool may_move(std::int32_t block);
    bool begin_part(std::int32_t block);
    void free_received(std::int32_t block);
    void end_part(std::int32_t block);
    void finish(std::int32_t block);
    void come_to_execution(Block& b);
    void keep(const Execution& execution);
    void enter(std::int32_t block, State state);
    void blame(Execution& execution, Cause cause, std::int64_t after);
    void begin_flow(std::int32_t flow, std::int32_t kind, double amount);
    void settle(std::int32_t flow);
    void record(std::int32_t link, double from, double to, double bytes);
    void post_part(std::int32_t connection, Part part);
    void next_post(std::int32_t connection);
    void end_post(std::int32_t connection);
    void next_on_wire(std::int32_t connection);
    void end_wire(std::int32_t connection);
    std::int64_t room(const Block& b) const { return unit_ / b.at.parts; }
    const SimulatorCut& cut(const Block& b) const {
        return settings_.cuts[plan_.call[&b - blocks_.data()]];
    }

    SimulatorPlan plan_;
    SimulatorConnections ends_;
    SimulatorSettings settings_;
    SimulatorResult result_;
    Sharing sharing_;
    std::vector<double> capacity_;  // of resources
    double check_us_ = 0;           // when the time left is computed again
    std::int64_t tiles_ = 1;  // the most of a call
    std::int64_t unit_ = 1;  // the credit of a slot, divisible by every number of parts
    double now_ = 0;
    std::uint64_t events_ = 0;
    std::priority_queue<Event> queue_;  // of all events but the ends of flows
    FlowEnds flow_ends_;
    std::vector<Block> blocks_;
    std::vector<Connection> connections_;
    std::vector<Flow> flows_;
    std::vector<std::int64_t> done_;                  // the finished tiles of each instruction
    std::vector<std::int32_t> waiter_, next_waiter_;  // lists of blocks, waiting for instructions
};

}  // namespace sley
