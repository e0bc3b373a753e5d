#include "nccl/group.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "nccl/errors.hpp"
#include "nccl/passing.hpp"

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
    if (depth > 0) {
        if (openings != nullptr && openings->front()->blocks != blocks) {
            opening->drop(Result::kInvalidArgument);
            return note(refuse(Result::kInvalidArgument, "N703",
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
    // Those of one communicator one after the other: its ranks meet in this order.
    using Lane = std::vector<std::function<Result()>>;
    std::map<const void*, Lane> lanes;
    bool blocks = false;
    for (auto& one : take(openings)) {
        const void* of = one->parent != nullptr ? static_cast<void*>(one->parent) : one.get();
        blocks |= one->blocks;
        lanes[of].push_back([one] { return one->run(); });
    }
    const auto later = take(lates);
    std::map<Comm*, Completion> completions;
    for (const auto& [its, _] : later) {
        auto& lacks = completions.emplace(its.comm, its).first->second.lacks;
        if (lacks.empty()) lacks = its.lacks;
        blocks |= its.comm->blocks;
    }
    for (const auto& [comm, one] : completions) lanes[comm].push_back([one = one] { return one.run(); });
    if (lanes.empty()) return Result::kSuccess;
    const auto work = [lanes, later, completions, blocks] {
        std::atomic<Result> result{Result::kSuccess};
        const auto run = [&result](const Lane& lane) {
            for (const auto& one : lane) {
                const auto found = one();
                if (is_error(found)) result = found;
            }
        };
        // The others in threads, because each waits for other ranks, which may be of this thread, too;
        // and all, if this thread has a group of the real library, which would only queue them.
        std::vector<std::thread> threads;
        auto lane = lanes.begin();
        if (group.depth == 0) ++lane;
        for (; lane != lanes.end(); ++lane) threads.emplace_back(run, std::cref(lane->second));
        if (group.depth == 0) run(lanes.begin()->second);
        for (auto& thread : threads) thread.join();
        if (!is_error(result) && !later.empty()) {
            if (!blocks) result = worse(result, real().GroupStart());
            for (const auto& one : later) result = worse(result, one.call());
            if (!blocks) result = worse(result, real().GroupEnd());
        }
        for (const auto& [comm, _] : completions) comm->end_completion(result);
        return result.load();
    };
    if (blocks) return work();
    std::thread(work).detach();
    return Result::kInProgress;
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
    if (depth <= 1 && (calls != nullptr || lates != nullptr) && estimate != nullptr) {
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
