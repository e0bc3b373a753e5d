#include "simulator/simulator.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace sley {
namespace {

// Events this close together are simultaneous: if rounding separated the events of symmetric
// blocks, rates would be computed again for each of them.
constexpr double kMoment_us = 1e-7;

}  // namespace

Simulator::Simulator(SimulatorPlan plan, SimulatorConnections connections, FlowClasses classes,
                     const std::vector<double>& capacity, const std::vector<double>& gamma,
                     SimulatorSettings settings)
    : plan_(std::move(plan)),
      ends_(std::move(connections)),
      settings_(std::move(settings)),
      sharing_(std::move(classes), capacity, gamma,
               static_cast<std::int32_t>(plan_.block_offset.size() - 1 + 2 * ends_.wire.size())),
      capacity_(capacity) {
    const auto blocks = plan_.block_offset.size() - 1;
    const auto instructions = plan_.kind.size();
    for (const auto& cut : settings_.cuts) tiles_ = std::max(tiles_, cut.tiles);
    for (std::int64_t k = 2; k <= settings_.slices; ++k) unit_ = std::lcm(unit_, k);
    blocks_.resize(blocks);
    connections_.resize(ends_.wire.size());
    flows_.resize(blocks + 2 * ends_.wire.size());
    flow_ends_.resize(flows_.size());
    done_.assign(instructions, 0);
    waiter_.assign(instructions, kNone);
    next_waiter_.assign(blocks, kNone);
    for (std::size_t b = 0; b < blocks; ++b) {
        blocks_[b].instruction = plan_.block_offset[b];
        blocks_[b].since = settings_.launch_us;
        if (plan_.block_offset[b] < plan_.block_offset[b + 1]) come_to_execution(blocks_[b]);
    }
    for (auto& c : connections_) c.credit = c.clear = settings_.slots * unit_;
    for (auto* times : {&result_.end_us, &result_.moving_us, &result_.waiting_us,
                        &result_.message_us, &result_.slot_us, &result_.overhead_us}) {
        times->assign(blocks, 0);
    }
    const auto rows = settings_.records ? instructions * tiles_ : 0;
    result_.executions = {std::vector<double>(rows), std::vector<double>(rows, -1),
                  std::vector<double>(rows), std::vector<std::int8_t>(rows),
                  std::vector<std::int8_t>(rows), std::vector<std::int64_t>(rows, kNone),
                  std::vector<std::int64_t>(rows, kNone), std::vector<double>(rows),
                  std::vector<double>(rows)};
    result_.moved_bytes.assign(settings_.links, 0);
    result_.load_bytes.assign(settings_.records ? settings_.links * kBins : 0, 0);
    result_.bin_us = 1.0 / 64;
}

void Simulator::push(double time, Kind kind, std::int32_t id) {
    queue_.push({time, events_++, kind, id});
}

void Simulator::FlowEnds::set(const Event& event) {
    const std::int32_t place = place_[event.id];
    if (place == kNone) {
        events_.push_back(event);
        rise(events_.size() - 1, event);
    } else if (events_[place] < event) {
        rise(place, event);
    } else {
        sink(place, event);
    }
}

void Simulator::FlowEnds::pop() {
    place_[events_.front().id] = kNone;
    const Event last = events_.back();
    events_.pop_back();
    if (!events_.empty()) sink(0, last);
}

void Simulator::FlowEnds::put(std::size_t place, const Event& event) {
    events_[place] = event;
    place_[event.id] = static_cast<std::int32_t>(place);
}

// Moves an event up from a free place, past those that come later. Ends at the top.
void Simulator::FlowEnds::rise(std::size_t place, const Event& event) {
    for (; place > 0 && events_[(place - 1) / 2] < event; place = (place - 1) / 2) {
        put(place, events_[(place - 1) / 2]);
    }
    put(place, event);
}

// Moves an event down from a free place, past those that come earlier. Ends at a leaf.
void Simulator::FlowEnds::sink(std::size_t place, const Event& event) {
    for (std::size_t below; (below = 2 * place + 1) < events_.size(); place = below) {
        if (below + 1 < events_.size() && events_[below] < events_[below + 1]) ++below;
        if (!(event < events_[below])) break;
        put(place, events_[below]);
    }
    put(place, event);
}

// The next event; null if there is none.
const Simulator::Event* Simulator::next() const {
    if (flow_ends_.empty()) return queue_.empty() ? nullptr : &queue_.top();
    return queue_.empty() || queue_.top() < flow_ends_.top() ? &flow_ends_.top() : &queue_.top();
}

// Takes the next event away.
void Simulator::pop(const Event& next) {
    if (next.kind == Kind::moved) {
        flow_ends_.pop();
    } else {
        queue_.pop();
    }
}

SimulatorResult Simulator::run() {
    now_ = settings_.launch_us;
    bool ends_early = false;
    for (std::size_t b = 0; b < blocks_.size(); ++b) advance(static_cast<std::int32_t>(b));
    // Ends: a plan has so many parts, and each has a few events; one that hangs has none left.
    while (true) {
        if (sharing_.is_dirty()) {
            sharing_.update_rates([this](std::int32_t flow, double rate) {
                settle(flow);
                const Flow& f = flows_[flow];
                flow_ends_.set({now_ + f.left / rate, events_++, Kind::moved, flow});
            });
        }
        const Event* first = next();
        if (!first || (ends_early = is_over(first->time))) break;
        const double end = first->time + kMoment_us;
        while (first && first->time <= end) {
            const Event event = *first;
            pop(event);
            if ((first = next())) fetch(*first);
            handle(event);
            first = next();
        }
    }
    for (const Block& b : blocks_) {
        if (b.state == State::done) continue;
        result_.is_whole = false;
        if (!ends_early) result_.stuck.push_back(static_cast<std::int32_t>(b.instruction));
    }
    return std::move(result_);
}

// Whether the run ends after `until_us`: by its next event, and now and then by the time that is
// left.
bool Simulator::is_over(double next_us) {
    const double until_us = settings_.until_us;
    if (next_us > until_us) return true;
    if (next_us < check_us_) return false;
    const double spare_us = until_us - next_us - least_left_us();
    if (spare_us < -1e-9 * until_us) return true;
    // The spare time falls no faster than time goes.
    check_us_ = next_us + std::max(spare_us, (until_us - settings_.launch_us) / kChecks);
    return false;
}

// The least time that is left: no block moves data faster than its class may, and no resource
// carries more than its capacity. The executions at which blocks are, and parts between the hops of
// a connection, count as ended.
double Simulator::least_left_us() const {
    const FlowClasses& classes = sharing_.classes();
    std::vector<double> moved(classes.cap.size(), 0), load(capacity_.size(), 0);
    double most_us = 0;
    for (const Block& b : blocks_) {
        const auto block = &b - blocks_.data();
        const SimulatorCut& cut = this->cut(b);
        double own_us = 0;
        for (auto i = plan_.block_offset[block]; i < plan_.block_offset[block + 1]; ++i) {
            const std::int64_t left = cut.tiles - done_[i] - (i == b.instruction);
            if (left <= 0) continue;
            const double bytes = (static_cast<double>(left - 1) * cut.tile_bytes +
                                  cut.last_tile_bytes) * plan_.chunks[i] * plan_.messages[i];
            const std::int32_t kind = plan_.kind[i];
            if (kind != kNone) {
                own_us += bytes / classes.cap[kind];
                moved[kind] += bytes;
            }
            for (auto k = plan_.send_offset[i]; k < plan_.send_offset[i + 1]; ++k) {
                const std::int32_t wire = ends_.wire[plan_.send_target[k]];
                if (wire != kNone) moved[wire] += bytes;
            }
        }
        most_us = std::max(most_us, own_us);
    }
    for (std::size_t kind = 0; kind < moved.size(); ++kind) {
        for (auto k = classes.first[kind]; k < classes.first[kind + 1]; ++k) {
            load[classes.resource[k]] += moved[kind] * classes.weight[k];
        }
    }
    for (std::size_t r = 0; r < load.size(); ++r) {
        most_us = std::max(most_us, load[r] / capacity_[r]);
    }
    return most_us;
}

// Begins to read what an event is about while the event before it is handled: in large plans, most
// of the time of a run is spent waiting for memory.
void Simulator::fetch(const Event& event) const {
    const auto all_of = [](const auto& item) {
        const auto* bytes = reinterpret_cast<const char*>(&item);
        for (std::size_t at = 0; at < sizeof(item); at += 64) __builtin_prefetch(bytes + at);
    };
    if (event.kind == Kind::moved) all_of(flows_[event.id]);
    if (event.kind != Kind::moved && event.kind != Kind::resume) {
        all_of(connections_[event.id]);
    } else if (event.id < static_cast<std::int32_t>(blocks_.size())) {
        all_of(blocks_[event.id]);
    }
}

void Simulator::handle(const Event& event) {
    const auto blocks = static_cast<std::int32_t>(blocks_.size());
    now_ = std::max(now_, event.time);
    if (event.kind == Kind::resume) {
        advance(event.id);
        return;
    }
    if (event.kind == Kind::moved) {
        settle(event.id);
        sharing_.stop(event.id);
        const auto connections = static_cast<std::int32_t>(connections_.size());
        if (event.id < blocks) {
            advance(event.id);
        } else if (event.id < blocks + connections) {
            end_wire(event.id - blocks);
            next_on_wire(event.id - blocks);
        } else {
            end_post(event.id - blocks - connections);
            next_post(event.id - blocks - connections);
        }
        return;
    }
    Connection& c = connections_[event.id];
    if (event.kind == Kind::post) {
        next_post(event.id);
    } else if (event.kind == Kind::arrive) {
        ++c.arrived;
        if (c.receiver != kNone) advance(std::exchange(c.receiver, kNone));
    } else if (event.kind == Kind::clear) {
        c.clear += c.clearing.front().room;
        c.last_cleared = c.clearing.front().execution;
        c.clearing.pop_front();
        next_on_wire(event.id);
    } else {
        c.credit += c.freed.front().room;
        c.last_freed = c.freed.front().execution;
        c.freed.pop_front();
        if (c.sender != kNone) advance(std::exchange(c.sender, kNone));
    }
}

void Simulator::enter(std::int32_t block, State state) {
    Block& b = blocks_[block];
    const double spent = now_ - b.since;
    switch (b.state) {
        case State::waiting: result_.waiting_us[block] += spent; break;
        case State::overhead:
        case State::fence: result_.overhead_us[block] += spent; break;
        case State::message: result_.message_us[block] += spent; break;
        case State::slot: result_.slot_us[block] += spent; break;
        case State::moving:
            result_.moving_us[block] += spent;
            b.at.moving_us += spent;
            break;
        case State::ready:
        case State::done: break;
    }
    b.state = state;
    b.since = now_;
}

void Simulator::blame(Execution& execution, Cause cause, std::int64_t after) {
    execution.cause = cause;
    execution.after = after;
    execution.cause_us = now_;
    if (execution.start_us < 0) {
        execution.first_cause = cause;
        execution.first_after = after;
    }
}

// Reads what the block's next execution needs.
void Simulator::come_to_execution(Block& b) {
    const std::int64_t i = b.instruction;
    const auto targets = [i](const auto& offset, const auto& target) {
        return Targets{target.data() + offset[i], target.data() + offset[i + 1]};
    };
    Execution at;
    at.row = i * tiles_ + b.tile;
    at.sends = targets(plan_.send_offset, plan_.send_target);
    at.receives = targets(plan_.receive_offset, plan_.receive_target);
    at.waits = targets(plan_.wait_offset, plan_.wait_target);
    const SimulatorCut& cut = this->cut(b);
    const bool last = b.tile + 1 == cut.tiles;
    const double bytes = (last ? cut.last_tile_bytes : cut.tile_bytes) * plan_.chunks[i];
    if (!at.sends.empty() || !at.receives.empty()) {  // a local operation has one part
        const double most = std::ceil(bytes / settings_.least_slice_bytes);
        at.parts = std::max<std::int64_t>(
            1, most < settings_.slices ? static_cast<std::int64_t>(most) : settings_.slices);
    }
    at.part_bytes = bytes / static_cast<double>(at.parts);
    b.at = at;
}

// Writes an execution that has ended into its row of the result.
void Simulator::keep(const Execution& at) {
    if (!settings_.records) return;
    Executions& all = result_.executions;
    all.turn_us[at.row] = at.turn_us;
    all.start_us[at.row] = at.start_us;
    all.end_us[at.row] = now_;
    all.cause[at.row] = static_cast<std::int8_t>(at.cause);
    all.first_cause[at.row] = static_cast<std::int8_t>(at.first_cause);
    all.after[at.row] = at.after;
    all.first_after[at.row] = at.first_after;
    all.cause_us[at.row] = at.cause_us;
    all.moving_us[at.row] = at.moving_us;
}

// Advances a block until it must wait or spend time.
void Simulator::advance(std::int32_t block) {
    Block& b = blocks_[block];
    // Goes on without an event only over parts that take no time, so it ends with the block.
    while (true) {
        if (b.state == State::moving) free_received(block);
        if (b.state == State::moving && !b.at.sends.empty()) {
            double fence = 0;
            for (const auto send : b.at.sends) fence = std::max(fence, ends_.fence_us[send]);
            enter(block, State::fence);
            if (fence > 0) {
                push(now_ + fence, Kind::resume, block);
                return;
            }
        }
        if (b.state == State::moving || b.state == State::fence) end_part(block);
        if (b.instruction == plan_.block_offset[block + 1]) {
            enter(block, State::done);
            result_.end_us[block] = now_;
            return;
        }
        if (!may_begin(block) || !may_move(block)) return;
        if (begin_part(block)) return;
    }
}

// Whether an execution's waits are over, and its overhead spent.
bool Simulator::may_begin(std::int32_t block) {
    Block& b = blocks_[block];
    if (b.at.paid) return true;
    if (b.state == State::ready) {
        b.at.turn_us = now_;
        const bool first = b.tile == 0 && b.instruction == plan_.block_offset[block];
        if (first) blame(b.at, Cause::launch, kNone);
    }
    for (const auto other : b.at.waits) {
        if (done_[other] > b.tile) continue;
        blame(b.at, Cause::wait, other * tiles_ + b.tile);
        next_waiter_[block] = waiter_[other];
        waiter_[other] = block;
        enter(block, State::waiting);
        return false;
    }
    b.at.paid = true;
    const double cost = plan_.begin_us[b.instruction];
    if (cost == 0) return true;
    enter(block, State::overhead);
    push(now_ + cost, Kind::resume, block);
    return false;
}

// Whether the next part has arrived, of all messages, and has room at all its destinations.
bool Simulator::may_move(std::int32_t block) {
    Block& b = blocks_[block];
    for (const auto take : b.at.receives) {
        if (connections_[take].arrived > 0) continue;
        enter(block, State::message);
        connections_[take].receiver = block;
        b.awaited = take;
        return false;
    }
    if (b.state == State::message) {
        blame(b.at, Cause::message, connections_[b.awaited].sent.front());
    }
    for (const auto send : b.at.sends) {
        if (connections_[send].credit >= room(b)) continue;
        enter(block, State::slot);
        connections_[send].sender = block;
        b.awaited = send;
        return false;
    }
    if (b.state == State::slot) blame(b.at, Cause::slot, connections_[b.awaited].last_freed);
    return true;
}

// Takes a part and its room, and begins to move the part; false if there is nothing to move.
bool Simulator::begin_part(std::int32_t block) {
    Block& b = blocks_[block];
    for (const auto send : b.at.sends) connections_[send].credit -= room(b);
    for (const auto take : b.at.receives) --connections_[take].arrived;
    enter(block, State::moving);
    if (b.at.start_us < 0) b.at.start_us = now_;
    const std::int32_t kind = plan_.kind[b.instruction];
    if (kind == kNone || b.at.part_bytes <= 0) return false;
    begin_flow(block, kind, b.at.part_bytes + settings_.overhead_bytes);
    return true;
}

// Frees the room of a received part that has been moved on.
void Simulator::free_received(std::int32_t block) {
    const Block& b = blocks_[block];
    for (const auto take : b.at.receives) {
        Connection& c = connections_[take];
        const bool direct = ends_.wire[take] == kNone;
        c.sent.pop_front();
        (direct ? c.freed : c.clearing).push_back({b.at.row, room(b)});
        push(now_ + ends_.credit_us[take], direct ? Kind::free : Kind::clear, take);
    }
}

// Announces a part that has been moved.
void Simulator::end_part(std::int32_t block) {
    Block& b = blocks_[block];
    for (const auto send : b.at.sends) {
        connections_[send].sent.push_back(b.at.row);
        if (ends_.wire[send] == kNone) {
            push(now_ + ends_.latency_us[send], Kind::arrive, send);
        } else {
            // A proxy that posts whole messages takes all of their parts after the last one.
            const bool last = (b.at.part + 1) % b.at.parts == 0;
            const double post_us = ends_.post_us[send] / static_cast<double>(b.at.parts);
            std::int64_t seen = settings_.whole_posts ? (last ? b.at.parts : 0) : 1;
            while (seen-- > 0) post_part(send, {0, b.at.part_bytes, post_us, room(b), b.at.row});
        }
    }
    enter(block, State::ready);
    if (++b.at.part == b.at.parts * plan_.messages[b.instruction]) finish(block);
}

// Ends an execution: blocks that wait for it go on, and the block turns to its next one.
void Simulator::finish(std::int32_t block) {
    Block& b = blocks_[block];
    const std::int64_t ended = b.at.row;
    const std::int32_t instruction = static_cast<std::int32_t>(b.instruction);
    keep(b.at);
    ++done_[instruction];
    const bool tiles_left = b.tile + 1 < cut(b).tiles;
    if (plan_.instruction_major[block]) {
        if (tiles_left) {
            ++b.tile;
        } else {
            b.tile = 0;
            ++b.instruction;
        }
    } else if (++b.instruction == plan_.block_offset[block + 1] && tiles_left) {
        b.instruction = plan_.block_offset[block];
        ++b.tile;
    }
    if (b.instruction < plan_.block_offset[block + 1]) {
        come_to_execution(b);
        blame(b.at, Cause::turn, ended);
    }
    for (std::int32_t other = std::exchange(waiter_[instruction], kNone); other != kNone;) {
        push(now_, Kind::resume, other);
        other = std::exchange(next_waiter_[other], kNone);
    }
}

void Simulator::begin_flow(std::int32_t flow, std::int32_t kind, double amount) {
    flows_[flow].left = amount;
    flows_[flow].since = now_;
    sharing_.start(flow, kind);
}

// Subtracts and records the bytes that a flow has moved since its rate changed.
void Simulator::settle(std::int32_t flow) {
    Flow& f = flows_[flow];
    const double since = std::exchange(f.since, now_);
    const double bytes = std::min(f.left, sharing_.rate(flow) * (now_ - since));
    if (bytes <= 0) return;
    f.left -= bytes;
    if (!settings_.records) return;
    const FlowClasses& classes = sharing_.classes();
    const std::int32_t kind = sharing_.kind(flow);
    for (std::int64_t k = classes.first[kind]; k < classes.first[kind + 1]; ++k) {
        if (classes.resource[k] < settings_.links) record(classes.resource[k], since, now_, bytes);
    }
}

// Adds to a link's load; doubles the length of the bins if the run exceeds them.
void Simulator::record(std::int32_t link, double from, double to, double bytes) {
    double& bin_us = result_.bin_us;
    std::vector<double>& load_bytes = result_.load_bytes;
    result_.moved_bytes[link] += bytes;
    // Two bins become one, so that memory doesn't grow with the time of the run.
    while (to >= bin_us * static_cast<double>(kBins)) {
        for (std::int64_t k = 0; k < kBins; ++k) {
            for (std::int32_t l = 0; l < settings_.links; ++l) {
                const auto at = [&](std::int64_t bin) {
                    return bin < kBins ? load_bytes[bin * settings_.links + l] : 0.0;
                };
                load_bytes[k * settings_.links + l] = at(2 * k) + at(2 * k + 1);
            }
        }
        bin_us *= 2;
    }
    const double rate = bytes / (to - from);
    for (auto k = static_cast<std::int64_t>(from / bin_us); static_cast<double>(k) * bin_us < to;
         ++k) {
        const double begin = std::max(from, static_cast<double>(k) * bin_us);
        const double end = std::min(to, static_cast<double>(k + 1) * bin_us);
        load_bytes[k * settings_.links + link] += rate * std::max(0.0, end - begin);
    }
}

// Puts a part into the sender's FIFO. Its proxy sees it late enough for posts that end when the
// second hop is due, or at once where the posts take longer than that.
void Simulator::post_part(std::int32_t connection, Part part) {
    part.ready_us = now_ + std::max(0.0, ends_.before_us[connection] - part.post_us);
    connections_[connection].posts.push_back(part);
    push(part.ready_us, Kind::post, connection);
}

// Begins the posts of the next part that its proxy sees.
void Simulator::next_post(std::int32_t connection) {
    Connection& c = connections_[connection];
    // Several at once only where posts take no time: then none blocks the next.
    while (!c.posting && !c.posts.empty() && c.posts.front().ready_us <= now_) {
        const double post_us = c.posts.front().post_us;
        if (post_us > 0) {
            c.posting = true;
            begin_flow(static_cast<std::int32_t>(blocks_.size() + connections_.size()) + connection,
                       ends_.post[connection], post_us);
        } else {
            end_post(connection);
        }
    }
}

void Simulator::end_post(std::int32_t connection) {
    Connection& c = connections_[connection];
    c.posting = false;
    c.wire.push_back(c.posts.front());
    c.posts.pop_front();
    next_on_wire(connection);
}

// Begins the second hop of the next part that has room in the receiver's FIFO.
void Simulator::next_on_wire(std::int32_t connection) {
    Connection& c = connections_[connection];
    while (!c.busy && !c.wire.empty()) {
        Part& part = c.wire.front();
        c.blocked |= c.clear < part.room;
        if (c.clear < part.room) return;
        if (std::exchange(c.blocked, false)) part.after = c.last_cleared;
        c.clear -= part.room;
        if (part.bytes > 0) {
            c.busy = true;
            begin_flow(static_cast<std::int32_t>(blocks_.size()) + connection,
                       ends_.wire[connection], part.bytes + settings_.overhead_bytes);
        } else {
            end_wire(connection);
        }
    }
}

// Frees the sender's room of a part that has left, and announces the part to the receiver: after
// what is left of the latency, and not before the part ahead of it.
void Simulator::end_wire(std::int32_t connection) {
    Connection& c = connections_[connection];
    const Part part = c.wire.front();
    const double before_us = ends_.before_us[connection];
    const double left_us = ends_.latency_us[connection] - std::max(0.0, part.post_us - before_us);
    c.last_arrival_us = std::max(c.last_arrival_us, now_ + std::max(0.0, left_us));
    push(c.last_arrival_us, Kind::arrive, connection);
    c.freed.push_back({part.after, part.room});
    push(now_ + ends_.credit_us[connection], Kind::free, connection);
    c.wire.pop_front();
    c.busy = false;
}

}  // namespace sley
