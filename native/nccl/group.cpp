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

// The making of a communicator, or of the real one.
struct Job {
    std::function<Result()> run;
    std::function<void(Result)> drop;  // instead
    std::function<void()> interrupt;
};
// The jobs of one communicator run one after the other: its ranks meet in this order.
using Lane = std::vector<Job>;
using Lanes = std::map<const void*, Lane>;

void drop(const Lane& lane, Result why) {
    for (const auto& one : lane) one.drop(why);
}

// Lanes run beside one another: each waits for other ranks, which this thread may drive, too.
Result run(const Lanes& lanes) {
    std::atomic<Result> result{Result::kSuccess};
    const auto work = [&result](const Lane& lane) {
        for (const auto& one : lane) {
            const auto found = one.run();
            if (is_error(found)) result = found;
        }
    };
    // A thread with a group of the real library's would only queue what it makes.
    const bool takes_part = group.depth == 0;
    const auto first = takes_part ? std::next(lanes.begin()) : lanes.begin();
    std::vector<std::thread> threads;
    std::optional<Refusal> lacks;
    for (auto lane = first; lane != lanes.end() && !lacks; ++lane) {
        try {
            threads.push_back(own_thread([&work, &its = lane->second] { work(its); }));
        } catch (const Refusal& why) {
            lacks = why;
        }
    }
    if (!lacks) {
        if (takes_part) work(lanes.begin()->second);
    } else {
        // Those that are made may wait for those that aren't.
        auto lane = first;
        for (std::size_t k = 0; k < threads.size(); ++k, ++lane) {
            for (const auto& one : lane->second) one.interrupt();
        }
        for (; lane != lanes.end(); ++lane) drop(lane->second, result_of(*lacks));
        if (takes_part) drop(lanes.begin()->second, result_of(*lacks));
    }
    for (auto& thread : threads) thread.join();
    return lacks ? refuse(result_of(*lacks), *lacks) : result.load();
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
    }
    append(openings, opening);
    if (depth == 0) return make();
    return blocks ? Result::kSuccess : Result::kInProgress;
}

Result Group::add(Late late) {
    Comm& comm = *late.completion.comm;
    const bool is_busy = depth == 0 && comm.state() == Result::kInProgress;
    if (!delays(comm) && (is_busy || !comm.begin_completion())) {
        return note(refuse(Result::kInvalidArgument, "N703",
                           "a communicator for " + late.completion.function, "one in progress",
                           "Make calls when ncclCommGetAsyncError returns ncclSuccess."));
    }
    const bool blocks = comm.blocks;
    append(lates, std::move(late));
    if (depth == 0) return make();
    return blocks ? Result::kSuccess : Result::kInProgress;
}

bool Group::delays(const Comm& comm) const {
    return lates != nullptr && std::any_of(lates->begin(), lates->end(), [&](const Late& one) {
        return one.completion.comm == &comm;
    });
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

Result Group::make() {
    Lanes lanes;
    bool blocks = false;
    for (auto& one : take(openings)) {
        const void* of = one->parent != nullptr ? static_cast<void*>(one->parent) : one.get();
        lanes[of].push_back({[one] { return one->run(); }, [one](Result why) { one->drop(why); },
                             [one] { if (one->comm != nullptr) one->comm->interrupt(); }});
        blocks |= one->blocks;
    }
    const auto later = take(lates);
    std::map<Comm*, Completion> completions;
    for (const auto& [its, _] : later) {
        auto& lacks = completions.emplace(its.comm, its).first->second.lacks;
        if (lacks.empty()) lacks = its.lacks;
        blocks |= its.comm->blocks;
    }
    for (const auto& [comm, its] : completions) {
        const auto interrupt = [comm = comm] {
            comm->give_up({"N608", "a communicator in use", "no thread to make NCCL's"});
        };
        lanes[comm].push_back(
            {[its = its] { return its.run(); }, [=](Result) { interrupt(); }, interrupt});
    }
    if (lanes.empty()) return Result::kSuccess;
    const auto end = [completions](Result result) {
        for (const auto& [comm, _] : completions) comm->end_completion(result);
        return result;
    };
    const auto work = [lanes, later, end, blocks] {
        auto result = run(lanes);
        if (is_error(result) || later.empty()) return end(result);
        if (!blocks) result = real().GroupStart();
        for (const auto& one : later) result = worse(result, one.call());
        return end(blocks ? result : worse(result, real().GroupEnd()));
    };
    if (blocks) return work();
    try {
        own_thread(work).detach();
        return Result::kInProgress;
    } catch (const Refusal& why) {
        for (const auto& [_, lane] : lanes) drop(lane, result_of(why));
        return end(refuse(result_of(why), why));
    }
}

Result Group::end() {
    if (depth == 0) return has_real() ? PASS(GroupEnd)() : no_group(kGroupEnd);
    if (depth > 1) {
        const auto result = end_real();
        --depth;
        return result;
    }
    auto result = error;
    if (!is_error(result)) result = note(make());
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
    const bool runs = calls != nullptr || messages != nullptr || lates != nullptr;
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
    for (const auto& one : take(lates)) one.completion.comm->end_completion(Result::kSuccess);
    for (const auto& one : take(openings)) one->drop(result);
    for (const auto& one : take(made)) settle(one, result);
    const auto closed = take(closing);
    for (const auto& one : closed) one.part->close(true);
    for (const auto& one : closed) {
        if (one.waits) one.part->wait_for_close();
    }
}

}  // namespace sley::nccl
