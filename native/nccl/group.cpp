#include "nccl/group.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "nccl/errors.hpp"
#include "nccl/opening.hpp"
#include "nccl/passing.hpp"
#include "network/own_thread.hpp"

namespace sley::nccl {
namespace {

// One that failed after the real library had begun it stays: its caller ends it, as NCCL wants it.
void settle(const Group::Made& made, Result result) {
    if (!is_error(result) || made.comm->real() != nullptr) return;
    *made.out = nullptr;
    made.comm->end();
}

template <class Value>
std::vector<Value> take(std::vector<Value>*& values) {
    std::vector<Value> taken;
    if (values != nullptr) taken.swap(*values);
    delete std::exchange(values, nullptr);
    return taken;
}

template <class Value>
void append(std::vector<Value>*& values, Value value) {
    if (values == nullptr) values = new std::vector<Value>;
    values->push_back(std::move(value));
}

Result no_group(const Name& name) {
    return refuse(Result::kInvalidUsage, "N703", std::string(name.text) + " in a group",
                  "none that was started", "Call ncclGroupStart before.");
}

// Round by round: of ranks that a thread drives, none may be ahead of another by more calls than can be
// under way at once. In each round in one order on all ranks, though their programs may have others: on
// one stream, the calls of two communicators would wait for each other crosswise.
void put_in_order(std::vector<Group::Call>& calls) {
    std::map<const Part*, std::size_t> rounds;
    for (auto& one : calls) one.round = rounds[one.part.get()]++;
    std::stable_sort(calls.begin(), calls.end(), [](const auto& one, const auto& other) {
        return std::tie(one.round, one.part->communicator()) <
               std::tie(other.round, other.part->communicator());
    });
}

Result worse(Result one, Result other) {
    return is_error(one) || other == Result::kSuccess ? one : other;
}

}  // namespace

Result no_place() {
    return refuse(Result::kSystemError, "N703", "at most 65,536 communicators in a process",
                  "one more", "Destroy communicators that are no longer used.");
}

thread_local Group group{};

Result Group::note(Result result, bool known) {
    if (depth > 0 && is_error(result) && !is_error(error)) {
        error = result;
        is_known = known;
    }
    return result;
}

void Group::add(Handle** out, Comm* comm, Result result) {
    if (depth > 0 && !is_error(result)) {
        append(made, {out, comm});
    } else {
        settle({out, comm}, result);
    }
}

Result Group::add(const std::shared_ptr<Opening>& opening, Handle** out) {
    const bool blocks = opening->blocks;
    if (out != nullptr) {
        opening->comm = Comm::make();
        if (opening->comm == nullptr) return note(no_place());
        *out = opening->comm->handle();
    }
    opening->out = out;
    opening->begin();
    const auto refused = [&](Result result) {
        opening->drop(result);
        return note(result);
    };
    if (depth > 0) {
        if (openings != nullptr && openings->front()->blocks != blocks) {
            return refused(refuse(Result::kInvalidArgument, "N703",
                                  "communicators that all block, or all don't, in a group", "both",
                                  "Make them in two groups."));
        }
        append(openings, opening);
    } else if (blocks) {
        return opening->run();
    } else {
        try {
            own_thread([opening] { opening->run(); }).detach();
        } catch (const Refusal& why) {
            return refused(refuse(result_of(why), why));
        }
    }
    return blocks ? Result::kSuccess : Result::kInProgress;
}

Result Group::add(std::shared_ptr<Part> part, const Collective& call, Launch launch) {
    if (depth == 0) return launch(*part, call);
    append(calls, {std::move(part), call, launch, 0});
    return Result::kSuccess;
}

Result Group::add(std::shared_ptr<Part> part, const StreamMessage& message) {
    if (depth == 0) return launch(*part, {message});
    append(messages, {std::move(part), message});
    return Result::kSuccess;
}

void Group::close(std::shared_ptr<Part> part, bool waits) {
    if (depth > 0) return append(closing, {std::move(part), waits});
    part->close(true);
    if (waits) part->wait_for_close();
}

Result Group::start() {
    // A real library that is found later takes part from the next group on.
    if (depth == real_depth && has_real()) {
        const auto result = PASS(GroupStart)();
        if (result != Result::kSuccess) return result;
        ++real_depth;
    }
    ++depth;
    return Result::kSuccess;
}

Result Group::end_real() {
    if (real_depth < depth || real_depth == 0) return Result::kSuccess;
    --real_depth;
    // A call that it refuses keeps it from launching the others, whose group has failed here.
    if (depth == 1 && is_error(error) && !is_known) {
        real().AllReduce(nullptr, nullptr, 0, 0, RedOp{}, nullptr, nullptr);
        return real().GroupEnd();  // the last error is still the group's
    }
    return PASS(GroupEnd)();
}

Result Group::run_openings() {
    // Those of one parent one after the other: its ranks meet in this order. The others in threads,
    // because each waits for other ranks, which may be of this thread, too.
    std::map<const void*, std::vector<std::shared_ptr<Opening>>> lanes;
    for (auto& one : take(openings)) {
        lanes[one->parent != nullptr ? static_cast<void*>(one->parent) : one.get()].push_back(one);
    }
    if (lanes.empty()) return Result::kSuccess;
    const bool blocks = lanes.begin()->second.front()->blocks;
    auto result = std::make_shared<std::atomic<Result>>(Result::kSuccess);
    std::vector<std::thread> threads;
    std::optional<Refusal> lacks;
    for (auto& [_, lane] : lanes) {
        try {
            if (lacks) throw Refusal(*lacks);
            threads.push_back(own_thread([lane = lane, result] {
                for (const auto& one : lane) {
                    const auto found = one->run();
                    if (is_error(found)) *result = found;
                }
            }));
        } catch (const Refusal& why) {
            lacks = why;
            for (const auto& one : lane) one->drop(result_of(why));
        }
    }
    // Those that are opened may wait for those that aren't.
    auto lane = lanes.begin();
    for (std::size_t k = 0; lacks && k < threads.size(); ++k, ++lane) {
        for (const auto& one : lane->second) {
            if (one->comm != nullptr) one->comm->interrupt();
        }
    }
    for (auto& thread : threads) blocks ? thread.join() : thread.detach();
    if (lacks) return refuse(result_of(*lacks), *lacks);
    return blocks ? result->load() : Result::kInProgress;
}

Result Group::end() {
    if (depth == 0) return has_real() ? PASS(GroupEnd)() : no_group(kGroupEnd);
    if (depth > 1) {
        const auto result = end_real();
        --depth;
        return result;
    }
    auto result = error;
    if (!is_error(result)) result = note(run_openings());
    if (!is_error(result)) {
        auto queued = take(calls);
        put_in_order(queued);
        for (const auto& call : queued) {
            result = worse(result, note(call.launch(*call.part, call.collective)));
        }
        // As calls, in one order on all ranks.
        std::map<std::pair<std::string, std::shared_ptr<Part>>, std::vector<StreamMessage>> sent;
        for (const auto& [part, message] : take(messages)) {
            sent[{part->communicator(), part}].push_back(message);
        }
        for (const auto& [rank, its] : sent) result = worse(result, note(launch(*rank.second, its)));
    }
    const auto real_result = end_real();
    result = worse(is_error(error) ? error : result, real_result);
    clear(is_error(result) ? result : real_result);
    return result;
}

Result Group::simulate_end(Estimate* estimate) {
    if (depth == 0 && !has_real()) return no_group(kGroupSimulateEnd);
    auto result = error;
    if (real_depth == depth) {  // also without a group, which the real library refuses
        real_depth = std::max(real_depth - 1, 0);
        result = worse(result, PASS(GroupSimulateEnd)(estimate));
    }
    const bool runs = calls != nullptr || messages != nullptr;
    if (depth <= 1 && runs && estimate != nullptr) {
        if (estimate->magic != kEstimateMagic || estimate->size < sizeof *estimate) {
            result = worse(result, refuse(Result::kInvalidArgument, "N705",
                                          "NCCL_SIM_INFO_INITIALIZER for ncclGroupSimulateEnd",
                                          "another struct", "Initialize it before."));
        } else {
            estimate->us = -1;
        }
    }
    if (depth <= 1) {
        clear(openings == nullptr ? result : worse(result, Result::kInvalidUsage));
    } else {
        --depth;
    }
    return result;
}

void Group::clear(Result result) {
    depth = 0;
    error = Result::kSuccess;
    is_known = false;
    take(calls);
    take(messages);
    for (const auto& one : take(openings)) one->drop(result);
    for (const auto& one : take(made)) settle(one, result);
    const auto closed = take(closing);
    for (const auto& one : closed) one.part->close(true);
    for (const auto& one : closed) {
        if (one.waits) one.part->wait_for_close();
    }
}

}  // namespace sley::nccl
