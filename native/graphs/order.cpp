#include "graphs/order.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <stdexcept>

namespace sley {

namespace {

constexpr std::int32_t NONE = -1;

// Numbers of which the least is taken first.
class Heap {
public:
    bool empty() const { return numbers_.empty(); }
    std::int32_t least() const { return numbers_.front(); }

    void push(std::int32_t number) {
        numbers_.push_back(number);
        std::push_heap(numbers_.begin(), numbers_.end(), std::greater<>());
    }

    std::int32_t take() {
        std::pop_heap(numbers_.begin(), numbers_.end(), std::greater<>());
        const auto number = numbers_.back();
        numbers_.pop_back();
        return number;
    }

private:
    std::vector<std::int32_t> numbers_;
};

// The transfers of a group, or one transfer.
struct Rows {
    const std::int32_t *first, *last;

    const std::int32_t* begin() const { return first; }
    const std::int32_t* end() const { return last; }
};

// A connection. Its messages are a list: from `oldest`, each leads to the next one.
struct Fifo {
    std::int32_t oldest = NONE, latest = NONE;
    std::int64_t used = 0;  // slots
    Heap parked;            // candidates that found no free slot
};

class Execution {
public:
    explicit Execution(const OrderInputs& inputs)
        : in_(inputs),
          half_of_(inputs.priority.size()),
          waiting_(inputs.priority.size()),
          done_(inputs.priority.size()),
          sent_with_(inputs.width.size(), NONE),
          fused_with_(inputs.width.size(), NONE),
          after_(inputs.width.size(), NONE) {
        std::int32_t connections = 0;
        for (const auto c : in_.connection) connections = std::max(connections, c + 1);
        fifos_.resize(connections);
        for (std::size_t half = 0; half < half_of_.size(); ++half) {
            half_of_[in_.priority[half]] = static_cast<std::int32_t>(half);
        }
        for (const auto half : in_.successor) ++waiting_[half];
        for (std::int32_t t = 0; t < transfers(); ++t) {
            if (in_.copied[t] != NONE) sent_with_[in_.copied[t]] = t;
            if (in_.forward[t] != NONE) fused_with_[in_.forward[t]] = t;
            // A group's leader runs the halves that its transfers share.
            done_[2 * t] = in_.sender[t] != t;
            done_[2 * t + 1] = in_.receiver[t] != t;
        }
    }

    Ordered run() {
        for (std::int32_t t = 0; t < transfers(); ++t) {
            if (in_.leader[t] == t) offer_send(t);
        }
        do {
            while (!ready_.empty()) take(half_of_[ready_.take()]);
        } while (split());
        if (!std::all_of(done_.begin(), done_.end(), [](auto done) { return done; })) {
            throw std::runtime_error("list scheduling stopped before the end");
        }
        return std::move(out_);
    }

private:
    std::int32_t transfers() const { return static_cast<std::int32_t>(in_.width.size()); }

    bool is_remote(std::int32_t t) const { return in_.connection[t] != NONE; }

    Rows rows(std::int32_t t) const {
        return {in_.row.data() + in_.row_offset[t], in_.row.data() + in_.row_offset[t + 1]};
    }

    // The transfers whose messages one receive takes.
    Rows taken_by(const std::int32_t& receive) const {
        return in_.reduces[receive] ? rows(receive) : Rows{&receive, &receive + 1};
    }

    // The transfers whose messages one send makes: messages that a switch combines are sent by an
    // instruction each.
    Rows put_by(const std::int32_t& send) const {
        return in_.reduces[in_.leader[send]] ? Rows{&send, &send + 1} : rows(send);
    }

    Fifo& fifo(std::int32_t t) { return fifos_[in_.connection[t]]; }

    // Whether everything that a transfer, or its group, waits for is done where it arrives.
    bool has_room(std::int32_t t) const {
        const auto some = rows(t);
        return std::none_of(some.begin(), some.end(),
                            [&](auto row) { return waiting_[2 * in_.receiver[row] + 1]; });
    }

    // Whether everything that a transfer, or its group, waits for is done, at both ends.
    bool is_free(std::int32_t t) const {
        const auto some = rows(t);
        return has_room(t) && std::none_of(some.begin(), some.end(), [&](auto row) {
                   return waiting_[2 * in_.sender[row]];
               });
    }

    // Whether all messages of a receive are the oldest on their connections.
    bool has_arrived(std::int32_t receive) {
        const auto some = taken_by(receive);
        return std::all_of(some.begin(), some.end(),
                           [&](auto row) { return fifo(row).oldest == row; });
    }

    // Makes a send (or local transfer) a candidate once source and destination are ready.
    void offer_send(std::int32_t t) {
        if (!is_free(t)) return;
        (sent_with_[t] == NONE ? ready_ : kept_back_).push(in_.priority[2 * t]);
    }

    // Makes the receive of the oldest message of a connection a candidate, if it takes no other
    // message or all others are the oldest too.
    void offer_receive(std::int32_t oldest) {
        const auto t = in_.receiver[oldest];
        if (in_.reduces[t] && !has_arrived(t)) return;
        const auto priority = in_.priority[2 * t + 1], after = in_.forward[t];
        if (after != NONE) heads_.push(priority);
        if (after == NONE || has_room(after)) ready_.push(priority);
    }

    // Makes the fused instruction that sends `send` a candidate if its message is the oldest.
    void offer_fused(std::int32_t send) {
        const auto receive = fused_with_[send];
        if (has_room(send) && has_arrived(receive)) ready_.push(in_.priority[2 * receive + 1]);
    }

    // Runs a candidate, or parks it until its send connection has a free slot.
    void take(std::int32_t half) {
        const auto t = half / 2;
        const bool receives = half % 2;
        if (done_[half]) return;
        if (!is_remote(t)) return finish(t, NONE);
        const auto send = receives ? in_.forward[t] : t;
        if (send != NONE && !find_slots(send, half)) return;
        if (!receives && in_.reduces[t]) {
            for (const auto row : rows(t)) finish(copy_of(row), row);
            return;
        }
        finish(receives ? t : copy_of(t), send);
        // Both ends execute a message of more chunks than slots together.
        if (send != NONE && in_.width[send] > in_.slots) finish(send, NONE);
    }

    // Whether all connections on which a candidate sends have a free slot; else parks it at the
    // first one without, and offers the slots of the others to those parked there.
    bool find_slots(std::int32_t send, std::int32_t half) {
        const auto some = rows(send);
        const std::int64_t width = in_.width[send];
        // A message wider than all slots needs an empty connection.
        const auto least = std::max(in_.slots, width) - width;
        const auto full = std::find_if(some.begin(), some.end(),
                                       [&](auto row) { return fifo(row).used > least; });
        if (full == some.end()) return true;
        fifo(*full).parked.push(in_.priority[half]);
        for (const auto row : some) {
            if (fifo(row).used <= least) unpark(fifo(row));
        }
        return false;
    }

    // The copy that runs with a send: the one that is to, if it may run by now; otherwise none, and
    // it will run by itself.
    std::int32_t copy_of(std::int32_t send) {
        const auto copy = in_.copied[send];
        if (copy == NONE || sent_with_[copy] == NONE) return NONE;
        sent_with_[copy] = NONE;
        return is_free(copy) ? copy : NONE;
    }

    // Makes the first instruction that is parked at a connection a candidate again. One is enough,
    // however many slots are free: then the connection holds its message, or one that leaves it no
    // room, and the receive of that message unparks the next.
    void unpark(Fifo& fifo) {
        while (!fifo.parked.empty()) {
            const auto priority = fifo.parked.take();
            if (done_[half_of_[priority]]) continue;
            ready_.push(priority);
            return;
        }
    }

    // Splits the fused instructions of one depth whose copies may run, or whose messages have
    // arrived; false if there are none.
    bool split() {
        const auto kept_back = take_alike(kept_back_);
        for (const auto half : kept_back) {
            sent_with_[half / 2] = NONE;
            offer_send(half / 2);
        }
        if (!kept_back.empty()) return true;
        const auto heads = take_alike(heads_);
        for (const auto half : heads) {
            fused_with_[in_.forward[half / 2]] = NONE;
            finish(half / 2, NONE);
        }
        return !heads.empty();
    }

    // Takes the first candidate that is not done, and all with its depth and reverse depth: if the
    // program is the same for all ranks, so is the plan.
    std::vector<std::int32_t> take_alike(Heap& candidates) {
        std::vector<std::int32_t> found;
        std::int32_t first = NONE;
        while (!candidates.empty() &&
               (found.empty() || in_.first_alike[candidates.least()] == first)) {
            const auto priority = candidates.take();
            const auto half = half_of_[priority];
            // A group's receive is a candidate once for each of its messages.
            if (done_[half] || (!found.empty() && found.back() == half)) continue;
            first = in_.first_alike[priority];
            found.push_back(half);
        }
        return found;
    }

    // Executes one instruction; a local transfer is received.
    void finish(std::int32_t receive, std::int32_t send) {
        out_.receive.push_back(receive);
        out_.send.push_back(send);
        if (receive != NONE && is_remote(receive)) {
            complete(2 * receive + 1);
            const auto taken = taken_by(receive);
            for (const auto row : taken) {
                fifo(row).oldest = after_[row];
                fifo(row).used -= in_.width[receive];
            }
            for (const auto row : taken) {
                if (fifo(row).oldest != NONE) offer_receive(fifo(row).oldest);
                unpark(fifo(row));
            }
        } else if (receive != NONE) {
            complete(2 * receive);
            complete(2 * receive + 1);
        }
        if (send == NONE) return;
        complete(2 * send);
        for (const auto row : put_by(send)) {
            auto& to = fifo(row);
            to.used += in_.width[row];
            (to.oldest == NONE ? to.oldest : after_[to.latest]) = row;
            to.latest = row;
            if (to.oldest == row) offer_receive(row);
        }
    }

    // Marks a half as done; a transfer that waited for nothing else becomes a candidate.
    void complete(std::int32_t half) {
        done_[half] = true;
        for (auto at = in_.offset[half]; at < in_.offset[half + 1]; ++at) {
            const auto later = in_.successor[at];
            if (--waiting_[later]) continue;
            const auto t = in_.leader[later / 2];
            if (fused_with_[t] == NONE) {
                offer_send(t);
            } else if (later % 2) {
                offer_fused(t);
            }
        }
    }

    const OrderInputs& in_;
    // half_of: by priority. waiting: how much each half waits for. sent_with: the send with which
    // each copy is to run. fused_with: the receive with which each send is to run. after: the next
    // message on the connection of each.
    std::vector<std::int32_t> half_of_, waiting_;
    std::vector<std::uint8_t> done_;
    std::vector<std::int32_t> sent_with_, fused_with_, after_;
    std::vector<Fifo> fifos_;
    // Candidates by priority. heads: receives of oldest messages that are fused with a send.
    // kept_back: copies that may run, but are to be one instruction with a send.
    Heap ready_, heads_, kept_back_;
    Ordered out_;
};

}  // namespace

Ordered order_instructions(const OrderInputs& inputs) { return Execution(inputs).run(); }

}  // namespace sley
