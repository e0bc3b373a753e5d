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
                     std::vector<double> capacity, std::vector<double> gamma,
                     SimulatorSettings settings)
    : plan_(std::move(plan)),
      ends_(std::move(connections)),
      settings_(settings),
      sharing_(std::move(classes), std::move(capacity), std::move(gamma),
               static_cast<std::int32_t>(plan_.block_offset.size() - 1 + 2 * ends_.wire.size())) {
    const auto blocks = plan_.block_offset.size() - 1;
    const auto instructions = plan_.kind.size();
    for (std::int64_t k = 2; k <= settings_.slices; ++k) unit_ = std::lcm(unit_, k);
    blocks_.resize(blocks);
    connections_.resize(ends_.wire.size());
    flows_.resize(blocks + 2 * ends_.wire.size());
    done_.assign(instructions, 0);
    waiter_.assign(instructions, kNone);
    next_waiter_.assign(blocks, kNone);
    for (std::size_t b = 0; b < blocks; ++b) {
        blocks_[b].instruction = plan_.block_offset[b];
        blocks_[b].since = settings_.launch_us;
    }
    for (auto& c : connections_) c.credit = c.clear = settings_.slots * unit_;
    for (auto* times : {&result_.end_us, &result_.moving_us, &result_.waiting_us,
                        &result_.message_us, &result_.slot_us, &result_.overhead_us}) {
        times->assign(blocks, 0);
    }
    const auto rows = instructions * settings_.tiles;
    result_.executions = {std::vector<double>(rows), std::vector<double>(rows, -1),
                  std::vector<double>(rows), std::vector<std::int8_t>(rows),
                  std::vector<std::int8_t>(rows), std::vector<std::int64_t>(rows, kNone),
                  std::vector<std::int64_t>(rows, kNone), std::vector<double>(rows),
                  std::vector<double>(rows)};
    result_.moved_bytes.assign(settings_.links, 0);
    result_.load_bytes.assign(settings_.links * kBins, 0);
    result_.bin_us = 1.0 / 64;
}

void Simulator::push(double time, Kind kind, std::int32_t id, std::uint32_t version,
                     std::int64_t room) {
    queue_.push({time, events_++, kind, id, version, room});
}

SimulatorResult Simulator::run() {
    now_ = settings_.launch_us;
    for (std::size_t b = 0; b < blocks_.size(); ++b) advance(static_cast<std::int32_t>(b));
    while (true) {
        if (sharing_.is_dirty()) {
            sharing_.update_rates([this](std::int32_t flow, double rate) {
                settle(flow);
                Flow& f = flows_[flow];
                push(now_ + f.left / rate, Kind::moved, flow, ++f.version);
            });
        }
        if (queue_.empty()) break;
        const double end = queue_.top().time + kMoment_us;
        while (!queue_.empty() && queue_.top().time <= end) {
            const Event event = queue_.top();
            queue_.pop();
            handle(event);
        }
    }
    for (const Block& b : blocks_) {
        if (b.state == State::done) continue;
        result_.stuck.push_back(static_cast<std::int32_t>(b.instruction));
    }
    return std::move(result_);
}

void Simulator::handle(const Event& event) {
    const auto blocks = static_cast<std::int32_t>(blocks_.size());
    if (event.kind == Kind::moved && flows_[event.id].version != event.version) return;
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
        c.clear += event.room;
        c.last_cleared = c.clearing.front();
        c.clearing.pop_front();
        next_on_wire(event.id);
    } else {
        c.credit += event.room;
        c.last_freed = c.freed.front();
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
            result_.executions.moving_us[row(b)] += spent;
            break;
        case State::ready:
        case State::done: break;
    }
    b.state = state;
    b.since = now_;
}

void Simulator::blame(std::int32_t block, Cause cause, std::int64_t after) {
    const std::int64_t execution = row(blocks_[block]);
    result_.executions.cause[execution] = static_cast<std::int8_t>(cause);
    result_.executions.after[execution] = after;
    result_.executions.cause_us[execution] = now_;
    if (result_.executions.start_us[execution] < 0) {
        result_.executions.first_cause[execution] = static_cast<std::int8_t>(cause);
        result_.executions.first_after[execution] = after;
    }
}

double Simulator::message_bytes(const Block& b) const {
    const double tile = b.tile + 1 < settings_.tiles ? settings_.tile_bytes
                                                     : settings_.last_tile_bytes;
    return tile * plan_.chunks[b.instruction];
}

// The number of parts of each message of an execution; a local operation has one.
std::int64_t Simulator::parts(const Block& b) const {
    if (sends(b).empty() && receives(b).empty()) return 1;
    const double most = std::ceil(message_bytes(b) / settings_.least_slice_bytes);
    return std::max<std::int64_t>(1, most < settings_.slices ? static_cast<std::int64_t>(most)
                                                             : settings_.slices);
}

// Advances a block until it must wait or spend time.
void Simulator::advance(std::int32_t block) {
    Block& b = blocks_[block];
    while (true) {
        if (b.state == State::moving) free_received(block);
        if (b.state == State::moving && !sends(b).empty()) {
            double fence = 0;
            for (const auto send : sends(b)) fence = std::max(fence, ends_.fence_us[send]);
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
        begin_part(block);
        if (moves(b)) return;
    }
}

// Whether an execution's waits are over, and its overhead spent.
bool Simulator::may_begin(std::int32_t block) {
    Block& b = blocks_[block];
    if (b.paid) return true;
    if (b.state == State::ready) {
        result_.executions.turn_us[row(b)] = now_;
        const bool first = b.tile == 0 && b.instruction == plan_.block_offset[block];
        if (first) blame(block, Cause::launch, kNone);
    }
    const std::int64_t from = plan_.wait_offset[b.instruction];
    const std::int64_t to = plan_.wait_offset[b.instruction + 1];
    for (std::int64_t k = from; k < to; ++k) {
        const std::int32_t other = plan_.wait_target[k];
        if (done_[other] > b.tile) continue;
        blame(block, Cause::wait, other * settings_.tiles + b.tile);
        next_waiter_[block] = waiter_[other];
        waiter_[other] = block;
        enter(block, State::waiting);
        return false;
    }
    b.paid = true;
    const double cost = settings_.decode_us + (to > from ? settings_.wait_us : 0);
    if (cost == 0) return true;
    enter(block, State::overhead);
    push(now_ + cost, Kind::resume, block);
    return false;
}

// Whether the next part has arrived, of all messages, and has room at all its destinations.
bool Simulator::may_move(std::int32_t block) {
    Block& b = blocks_[block];
    for (const auto take : receives(b)) {
        if (connections_[take].arrived > 0) continue;
        enter(block, State::message);
        connections_[take].receiver = block;
        b.awaited = take;
        return false;
    }
    if (b.state == State::message) {
        blame(block, Cause::message, connections_[b.awaited].sent.front());
    }
    for (const auto send : sends(b)) {
        if (connections_[send].credit >= unit_ / parts(b)) continue;
        enter(block, State::slot);
        connections_[send].sender = block;
        b.awaited = send;
        return false;
    }
    if (b.state == State::slot) blame(block, Cause::slot, connections_[b.awaited].last_freed);
    return true;
}

// Takes a part and its room, and begins to move the part.
void Simulator::begin_part(std::int32_t block) {
    const Block& b = blocks_[block];
    const std::int64_t count = parts(b);
    for (const auto send : sends(b)) connections_[send].credit -= unit_ / count;
    for (const auto take : receives(b)) --connections_[take].arrived;
    enter(block, State::moving);
    double& start = result_.executions.start_us[row(b)];
    if (start < 0) start = now_;
    const double bytes = message_bytes(b) / static_cast<double>(count);
    if (moves(b)) {
        begin_flow(block, plan_.kind[b.instruction], bytes + settings_.overhead_bytes);
    }
}

// Frees the room of a received part that has been moved on.
void Simulator::free_received(std::int32_t block) {
    const Block& b = blocks_[block];
    for (const auto take : receives(b)) {
        Connection& c = connections_[take];
        const bool direct = ends_.wire[take] == kNone;
        c.sent.pop_front();
        (direct ? c.freed : c.clearing).push_back(row(b));
        push(now_ + ends_.credit_us[take], direct ? Kind::free : Kind::clear, take, 0,
             unit_ / parts(b));
    }
}

// Announces a part that has been moved.
void Simulator::end_part(std::int32_t block) {
    Block& b = blocks_[block];
    const std::int64_t count = parts(b);
    for (const auto send : sends(b)) {
        connections_[send].sent.push_back(row(b));
        if (ends_.wire[send] == kNone) {
            push(now_ + ends_.latency_us[send], Kind::arrive, send);
        } else {
            const auto share = static_cast<double>(count);
            post_part(send, {0, message_bytes(b) / share, ends_.post_us[send] / share,
                             unit_ / count, row(b)});
        }
    }
    enter(block, State::ready);
    if (++b.part == count * plan_.messages[b.instruction]) finish(block);
}

// Ends an execution: blocks that wait for it go on, and the block turns to its next one.
void Simulator::finish(std::int32_t block) {
    Block& b = blocks_[block];
    const std::int64_t ended = row(b);
    const std::int32_t instruction = static_cast<std::int32_t>(b.instruction);
    result_.executions.end_us[ended] = now_;
    ++done_[instruction];
    b.part = 0;
    b.paid = false;
    const bool tiles_left = b.tile + 1 < settings_.tiles;
    if (plan_.instruction_major) {
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
    if (b.instruction < plan_.block_offset[block + 1]) blame(block, Cause::turn, ended);
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
    const double bytes = std::min(f.left, sharing_.rate(flow) * (now_ - f.since));
    if (bytes > 0) {
        const FlowClasses& classes = sharing_.classes();
        const std::int32_t kind = sharing_.kind(flow);
        for (std::int64_t k = classes.first[kind]; k < classes.first[kind + 1]; ++k) {
            if (classes.resource[k] < settings_.links) {
                record(classes.resource[k], f.since, now_, bytes);
            }
        }
        f.left -= bytes;
    }
    f.since = now_;
}

// Adds to a link's load; doubles the length of the bins if the run exceeds them.
void Simulator::record(std::int32_t link, double from, double to, double bytes) {
    double& bin_us = result_.bin_us;
    std::vector<double>& load_bytes = result_.load_bytes;
    result_.moved_bytes[link] += bytes;
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
    c.freed.push_back(part.after);
    push(now_ + ends_.credit_us[connection], Kind::free, connection, 0, part.room);
    c.wire.pop_front();
    c.busy = false;
}

}  // namespace sley
