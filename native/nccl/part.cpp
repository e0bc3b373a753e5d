#include "nccl/part.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nccl/errors.hpp"
#include "nccl/forks.hpp"
#include "network/own_thread.hpp"

namespace sley::nccl {
namespace {

// How late a rank learns that another one has ended.
constexpr auto kGlance = std::chrono::milliseconds(50);
// A program may destroy several communicators in one order on one rank and in another on the next:
// then the first to be closed wait for one another no longer than this after their calls, and are closed
// later.
constexpr auto kMostWait = std::chrono::seconds(5);

}  // namespace

struct Part::Siblings {
    std::mutex mutex;
    std::condition_variable changed;
    int ranks = 0;  // in this process
    // How many of them close, have waited for their calls, and are closed.
    int closing = 0, waited = 0, closed = 0;

    void count(int& those) {
        const std::lock_guard held(mutex);
        ++those;
        changed.notify_all();
    }
};

namespace {

struct Watch {
    std::mutex mutex;
    bool runs = false;
    std::vector<std::shared_ptr<Part>> parts;
    // Of the communicators with ranks in this process; expired ones stay until the next is made.
    std::map<std::string, std::weak_ptr<void>> siblings;

    void run() {
        std::unique_lock held(mutex);
        while (!parts.empty()) {
            auto seen = parts;
            held.unlock();
            for (const auto& part : seen) part->look();
            seen.clear();  // perhaps this was the last owner
            std::this_thread::sleep_for(kGlance);
            held.lock();
        }
        runs = false;  // the next part starts another thread
    }
};

OfProcess<Watch> watch;

}  // namespace

Result result_of(const Refusal& refusal) {
    const auto& rule = refusal.rule;
    if (rule == "N603" || rule == "N604") return Result::kInvalidArgument;
    if (rule == "N601" || rule == "N605" || rule == "N620" || rule == "N623" || rule == "K514") {
        return Result::kRemoteError;
    }
    if (rule == "N608") return Result::kInternalError;
    return rule[0] == 'K' ? Result::kUnhandledCudaError : Result::kSystemError;
}

std::shared_ptr<Part> Part::make(std::shared_ptr<Participant> participant,
                                 std::unique_ptr<DeviceRank> engine,
                                 const std::string& communicator,
                                 std::vector<ProcessIdentity> processes) {
    const std::shared_ptr<Part> part(new Part);
    const auto here = ProcessIdentity::here();
    const auto local_ranks = std::count(processes.begin(), processes.end(), here);
    part->processes_ = std::move(processes);
    part->communicator_ = communicator;
    part->participant_ = std::move(participant);
    part->engine_ = std::move(engine);
    auto& watching = *watch;
    const std::lock_guard held(watching.mutex);
    if (!watching.runs) own_thread([&watching] { watching.run(); }).detach();
    watching.runs = true;
    for (auto one = watching.siblings.begin(); one != watching.siblings.end();) {
        one = one->second.expired() ? watching.siblings.erase(one) : std::next(one);
    }
    auto& known = watching.siblings[communicator];
    part->siblings_ = std::static_pointer_cast<Siblings>(known.lock());
    if (part->siblings_ == nullptr) {
        known = part->siblings_ = std::make_shared<Siblings>();
        part->siblings_->ranks = static_cast<int>(local_ranks);
    }
    watching.parts.push_back(part);
    return part;
}

void Part::look() {
    const std::lock_guard held(looking_);  // who sees the failure finds its line, too
    if (failure_ != Result::kSuccess || is_closed_) return;
    auto why = participant_->end();
    if (why && why->rule == "N605") why = ended();
    // Ranks that are closed leave.
    if (why && closes_ && why->rule == "N623") return;
    bool is_remote = why.has_value();
    if (is_remote) engine_->give_up(*why);
    // A rank that left may have done so because calls were given up before, and perhaps only this one
    // knows why they were.
    if (const auto own = engine_->error(); own && (!is_remote || own->rule == "K508")) {
        why = own;
        is_remote = false;
    }
    if (!why) return;
    const auto result = is_remote ? Result::kRemoteError : result_for(*why);
    if (!closes_) refuse(result, *why);
    auto none = Result::kSuccess;
    failure_.compare_exchange_strong(none, result);
}

// For when nobody tells any more: the root's process has ended, which need not be a rank's.
std::optional<Refusal> Part::ended() const {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        const auto& process = processes_[rank];
        if (!process.is_gone()) continue;
        return Refusal("N620", "rank " + std::to_string(rank) + " to run", process.name() + " has ended");
    }
    return {};
}

Result Part::result_for(const Refusal& error) const {
    if (is_error(failure_)) return failure_;
    return error.rule == "N608" ? Result::kRemoteError : result_of(error);
}

void Part::give_up(const Refusal& why) {
    auto none = Result::kSuccess;
    failure_.compare_exchange_strong(none, result_of(why));
    engine_->give_up(why);
}

void Part::close(bool meets) {
    if (closes_.exchange(true)) return;
    siblings_->count(siblings_->closing);
    auto work = [part = shared_from_this(), meets]() mutable {
        const auto siblings = part->siblings_;
        const auto tries = [&part](const auto& work) {
            try {
                work();
            } catch (const Refusal& why) {
                // What was given up doesn't end as it should.
                if (part->failure_ == Result::kSuccess) refuse(result_of(why), why);
            }
        };
        tries([&] { part->engine_->wait(); });
        siblings->count(siblings->waited);
        if (is_logging() && part->engine_->has_graphs()) {
            log("memory of a communicator stays, since graphs have its calls");
        }
        tries([&] { part->engine_->close(meets && part->failure_ == Result::kSuccess); });
        part->is_closed_ = true;
        part->participant_->leave();
        {
            auto& watching = *watch;
            const std::lock_guard held(watching.mutex);
            auto& parts = watching.parts;
            parts.erase(std::remove(parts.begin(), parts.end(), part), parts.end());
        }
        // The process may end as soon as it knows: what the part still has goes before.
        part.reset();
        siblings->count(siblings->closed);
    };
    try {
        own_thread(work).detach();
    } catch (const Refusal& why) {
        // This thread does it; but others of its ranks would be closed only afterwards.
        if (siblings_->ranks > 1) give_up(why), refuse(result_of(why), why);
        work();
    }
}

void Part::wait_for_close() {
    std::unique_lock held(siblings_->mutex);
    const auto& its = *siblings_;
    if (its.closing < its.ranks) return;
    siblings_->changed.wait(held, [&] { return its.waited == its.ranks; });
    siblings_->changed.wait_for(held, kMostWait, [&] { return its.closed == its.ranks; });
}

}  // namespace sley::nccl
