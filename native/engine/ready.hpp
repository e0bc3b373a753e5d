// Ready calls: what runs a call, by the call's key, so that equal ones need no Python.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/calls.hpp"

namespace sley {

// Equal for calls that run alike. kind: a number of the caller's. element: the caller's number of
// its element type, of which several may be one of the engine's. count: elements of one block of the
// collective.
struct CallKey {
    std::int32_t kind;
    DataType type;
    ReduceOp op;
    bool in_place;
    std::int32_t root;
    std::int64_t count;
    std::int32_t element;

    bool operator==(const CallKey& other) const {
        return kind == other.kind && type == other.type && op == other.op &&
               in_place == other.in_place && root == other.root && count == other.count &&
               element == other.element;
    }
};

struct CallKeyHash {
    std::size_t operator()(const CallKey& key) const {
        auto h = static_cast<std::uint64_t>(key.count) * 0x9e3779b97f4a7c15u;
        h ^= static_cast<std::uint64_t>(key.kind) << 48 ^ static_cast<std::uint64_t>(key.type) << 40 ^
             static_cast<std::uint64_t>(key.op) << 36 ^ static_cast<std::uint64_t>(key.in_place) << 35 ^
             static_cast<std::uint64_t>(key.element) << 24 ^
             static_cast<std::uint64_t>(key.root);
        return static_cast<std::size_t>(h * 0xbf58476d1ce4e5b9u >> 16);
    }
};

// A rank's input and output; in place all of its data, and no output.
struct CallMemory {
    std::byte* start[2];
    std::int64_t bytes[2];
};

// A call, and a rank's memory for it: its bytes and its start, or `blocks` if it is not in one piece.
struct CallRequest {
    CallKey key;
    CallMemory memory;
    std::shared_ptr<const Parts> blocks;
};

// Adjacent elements of the engine's `type`, of `item` bytes each.
struct Elements {
    std::byte* start;
    std::int64_t count;
    DataType type;
    std::int64_t item;
    std::int32_t element;  // `CallKey::element`

    std::int64_t bytes() const { return count * item; }
    // A word at most: larger elements are pairs.
    bool is_aligned() const {
        return reinterpret_cast<std::uintptr_t>(start) %
                   static_cast<std::uintptr_t>(std::min<std::int64_t>(item, 8)) == 0;
    }
    bool overlaps(const Elements& other) const {
        return start < other.start + other.bytes() && other.start < start + bytes();
    }
};

// A kind of calls. input_parts, output_parts: whether this buffer has a part for each rank; of kinds
// without parts, the output is the input.
struct Kind {
    std::int32_t number;
    bool reduces, has_root, input_parts, output_parts;

    bool is_update() const { return !input_parts && !output_parts; }
};

// The request of a call whose output is its input.
CallRequest update_request(const Kind& kind, const Elements& data, ReduceOp op, std::int32_t root);
// The request of a call from one buffer to another; nothing if they don't fit the collective, or
// overlap in another way than its plans in place expect: a part is the rank's own of the whole.
std::optional<CallRequest> move_request(const Kind& kind, const Elements& output,
                                        const Elements& input, ReduceOp op, std::int32_t rank,
                                        std::int32_t ranks);
// The request of a call between lists of tensors: of the rank's parts where the kind has parts, which
// are empty lists where a root alone has them, and of one tensor elsewhere. Nothing if they don't fit
// the collective, or if inputs and outputs overlap: lists are never in place.
std::optional<CallRequest> list_request(const Kind& kind, const std::vector<Elements>& outputs,
                                        const std::vector<Elements>& inputs, ReduceOp op,
                                        std::int32_t root, std::int32_t rank, std::int32_t ranks);

// The ready calls of a communicator. Threads may share it.
class ReadyCalls {
public:
    ReadyCalls(std::shared_ptr<Calls> calls, double timeout_s)
        : calls_(std::move(calls)), timeout_s_(timeout_s) {}

    void put(const CallKey& key, Runner runner);
    void clear();
    void set_timeout(double seconds);
    // No call is ready any more, whatever is put; those that run keep what they need.
    void close();

    // Runs a call to its end in the caller's thread; nothing if it isn't ready, or if this is the
    // thread of submitted calls. Throws what `Engine::check` does.
    std::optional<Outcome> run(const CallRequest& request);
    // The timeout of calls; nothing after `close`.
    std::optional<double> timeout() const;
    // The calls that have run.
    std::uint64_t number() const { return number_.load(std::memory_order_relaxed); }

private:
    struct Found {
        std::shared_ptr<Calls> calls;
        std::shared_ptr<const Runner> runner;
        double timeout_s;
    };
    std::optional<Found> find(const CallKey& key) const;

    mutable std::mutex mutex_;
    std::shared_ptr<Calls> calls_;  // null after `close`
    std::unordered_map<CallKey, std::shared_ptr<const Runner>, CallKeyHash> ready_;
    double timeout_s_;
    std::atomic<std::uint64_t> number_{0};
};

}  // namespace sley
