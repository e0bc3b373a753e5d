#include "nccl/group.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "nccl/errors.hpp"
#include "nccl/opening.hpp"
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
        append(openings, opening);
    } else if (blocks) {
        return opening->run();
    } else {
        std::thread([opening] { opening->run(); }).detach();
    }
    return blocks ? Result::kSuccess : Result::kInProgress;
}

Result Group::add(Comm& comm, const Collective& call, Launch launch) {
    auto part = comm.part();
    if (part == nullptr) {  // another thread has aborted it
        return note(refuse(Result::kInvalidArgument, "N703", "a communicator that is in use",
                           "one that has ended", "Make calls before the communicator's end."));
    }
    if (depth == 0) return launch(*part, call);
    append(calls, {std::move(part), call, launch});
    return Result::kSuccess;
}

void Group::add(std::shared_ptr<Part> part) {
    if (depth == 0) return part->wait_for_close();
    append(closing, std::move(part));
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
    auto result = std::make_shared<std::atomic<Result>>(Result::kSuccess);
    std::vector<std::thread> threads;
    for (auto& [_, lane] : lanes) {
        threads.emplace_back([lane = lane, result] {
            for (const auto& one : lane) {
                const auto found = one->run();
                if (is_error(found)) *result = found;
            }
        });
    }
    const bool blocks = lanes.empty() || lanes.begin()->second.front()->blocks;
    for (auto& thread : threads) blocks ? thread.join() : thread.detach();
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
        for (const auto& call : take(calls)) {
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
    if (depth <= 1 && calls != nullptr && estimate != nullptr) {
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
    for (const auto& one : take(openings)) one->drop(result);
    for (const auto& one : take(made)) settle(one, result);
    for (const auto& one : take(closing)) one->wait_for_close();
}

}  // namespace sley::nccl
