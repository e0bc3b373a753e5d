#include "nccl/comm.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "nccl/forks.hpp"
#include "nccl/opening.hpp"
#include "nccl/passing.hpp"

namespace sley::nccl {
namespace {

// A handle is an address in this array: whether one is sley's is a comparison, without a lock or a
// look into memory of others. Untouched pages of it cost nothing.
constexpr std::size_t kMost = 65536;
struct Place {
    std::atomic<Comm*> live;
    Comm* comm;  // also after its end
};
Place places[kMost];
struct Making {
    std::mutex mutex;
    std::size_t next = 0;
};
OfProcess<Making> making;

constexpr auto kPoll = std::chrono::milliseconds(1);

Refusal aborted() { return {"N608", "a communicator in use", "it was aborted"}; }

Result not_ready(const char* function, const char* found) {
    return refuse(Result::kInvalidArgument, "N703", std::string("a communicator for ") + function,
                  found, "Wait until ncclCommGetAsyncError returns ncclSuccess.");
}

}  // namespace

Handle* Comm::handle() { return reinterpret_cast<Handle*>(&places[number_]); }

Comm* Comm::make() {
    const std::lock_guard lock(making->mutex);
    // In turn, so that a place is used again as late as possible. It ends: it tries each once.
    for (std::size_t tries = 0; tries < kMost; ++tries) {
        const auto number = making->next++ % kMost;
        auto& place = places[number];
        if (place.live.load(std::memory_order_relaxed) != nullptr) continue;
        if (place.comm == nullptr) place.comm = new Comm(number);
        if (place.comm->is_opening_ || place.comm->is_completing_) continue;  // it was aborted
        place.comm->clear();
        place.live.store(place.comm, std::memory_order_release);
        return place.comm;
    }
    return nullptr;
}

void Comm::clear() {
    const std::lock_guard held(mutex_);
    __atomic_store_n(&real_, nullptr, __ATOMIC_RELAXED);
    process_ = forks();
    ops_.clear();
    ranks = 0;
    rank = device = -1;
    blocks = true;
    lacks_real.clear();
    is_lazy = false;
    part_ = closing_ = nullptr;
    waits_on_ = nullptr;
    children_.clear();
    engine_ = nullptr;
    state_ = Result::kSuccess;
    is_opened_ = makes_real_ = is_aborted_ = is_real_aborted_ = false;
    is_finalized_ = is_revoked_ = lacks_for_good_ = false;
}

void Comm::end() {
    std::shared_ptr<Part> part, closing;  // freed without the lock
    {
        const std::lock_guard held(mutex_);
        engine_ = nullptr;
        part.swap(part_);
        closing.swap(closing_);
    }
    places[number_].live.store(nullptr, std::memory_order_release);
}

Comm::Found Comm::find(const Handle* handle) {
    const auto at = reinterpret_cast<std::uintptr_t>(handle);
    const auto first = reinterpret_cast<std::uintptr_t>(places);
    if (at - first >= sizeof(places) || (at - first) % sizeof(Place) != 0) return {};
    Comm* comm = places[(at - first) / sizeof(Place)].live.load(std::memory_order_acquire);
    const bool is_inherited = comm != nullptr && comm->process_ != forks();
    return {is_inherited ? nullptr : comm, true, is_inherited};
}

// A number says its communicator: another one doesn't take it for its own.
RedOp Comm::add_op(const Op& op) {
    const std::lock_guard lock(mutex_);
    const auto free = std::find(ops_.begin(), ops_.end(), std::nullopt);
    const auto index = static_cast<std::size_t>(free - ops_.begin());
    if (index >= kMostOps) return RedOp{};
    if (free == ops_.end()) ops_.emplace_back();
    ops_[index] = op;
    return static_cast<RedOp>(kBuiltInOps + number_ + kMost * index);
}

std::optional<Comm::Op> Comm::op_of(RedOp number, bool forgets) {
    if (static_cast<int>(number) < kBuiltInOps) return std::nullopt;
    const auto all = static_cast<std::size_t>(number) - kBuiltInOps;
    const std::lock_guard lock(mutex_);
    if (all % kMost != number_ || all / kMost >= ops_.size()) return std::nullopt;
    auto& op = ops_[all / kMost];
    return forgets ? std::exchange(op, std::nullopt) : op;
}

Result Comm::real_op(RedOp& number) {
    const std::lock_guard lock(mutex_);
    auto& op = ops_[(static_cast<std::size_t>(number) - kBuiltInOps) / kMost].value();
    auto result = Result::kSuccess;
    if (op.real == RedOp{}) {
        const bool is_here = op.factor_at == 0;
        void* scalar = is_here ? &op.factor : reinterpret_cast<void*>(op.factor_at);
        result = sley::nccl::real().RedOpCreatePreMulSum(&op.real, scalar, op.type, is_here, real());
        heard(result);
    }
    number = op.real;
    return result;
}

Result Comm::refuse_without_real(const std::string& expected) const {
    const bool awaits = awaits_real();
    return refuse(Result::kInvalidUsage, "N701", expected,
                  awaits ? "one that is made when all ranks need it" : lacks_real,
                  awaits ? "Set SLEY_NCCL=eager on all ranks."
                         : "Let all ranks of the communicator have NCCL.");
}

std::shared_ptr<Part> Comm::part() {
    const std::lock_guard held(mutex_);
    return part_;
}

Result Comm::state() {
    if (is_aborted_) return Result::kInternalError;
    std::shared_ptr<Part> part, closing;
    bool splits = false;  // in the background
    {
        const std::lock_guard held(mutex_);
        part = part_;
        closing = closing_;
        splits = !blocks && !children_.empty();
    }
    if (part != nullptr && !is_revoked_) {
        part->look();
        if (part->failure() != Result::kSuccess) return part->failure();
    }
    const bool closes = closing != nullptr && !closing->is_closed();
    const bool completes = !blocks && is_completing_;
    return is_opening_ || splits || closes || completes ? Result::kInProgress : state_.load();
}

const char* Comm::unready() {
    if (is_aborted_) return "one that was destroyed or aborted";
    if (is_opening_) return "one that is being made";
    return is_error(state_) ? "one that couldn't be made" : nullptr;
}

void Comm::begin() { is_opened_ = is_opening_ = true; }

void Comm::wait_on(const std::shared_ptr<Participant>& participant) {
    const std::lock_guard held(mutex_);
    if (is_aborted_) throw aborted();
    if (part_ != nullptr && is_error(part_->failure())) {
        throw Refusal("N608", "a communicator in use", "one of which calls have failed");
    }
    waits_on_ = participant;
}

void Comm::start(const std::shared_ptr<Part>& part) {
    const std::lock_guard held(mutex_);
    part_ = part;
    engine_ = &part->engine();
    if (is_aborted_) part->give_up(aborted());
}

void Comm::add_child(Opening* child) {
    const std::lock_guard held(mutex_);
    children_.insert(child);
    if (is_aborted_ && child->comm != nullptr) child->comm->interrupt();
}

void Comm::remove_child(Opening* child) {
    const std::lock_guard held(mutex_);
    children_.erase(child);
}

void Comm::wait_for_children() {
    for (std::unique_lock held(mutex_); !children_.empty(); held.lock()) {
        held.unlock();
        std::this_thread::sleep_for(kPoll);
    }
}

Result Comm::finish(Result result, Handle** out) {
    std::shared_ptr<Part> failed;
    {
        const std::lock_guard held(mutex_);
        waits_on_ = nullptr;
        if (is_aborted_ && !is_error(result)) result = refuse(Result::kInternalError, aborted());
        if (is_error(result)) {
            engine_ = nullptr;
            failed.swap(part_);
        }
        state_ = result;
    }
    if (failed != nullptr) {
        failed->give_up(aborted());
        failed->close(false);
    }
    if (is_aborted_) abort_real();
    // One that failed after the real library had begun it stays: its caller ends it, as NCCL wants it.
    if (is_error(result) && out != nullptr && (is_aborted_ || real() == nullptr)) {
        *out = nullptr;
        end();
    }
    is_opening_ = false;  // from now on another communicator may take its place
    return result;
}

bool Comm::take_real(Handle* made) {
    const std::lock_guard held(mutex_);
    if (is_aborted_ || is_revoked_) return false;
    __atomic_store_n(&real_, made, __ATOMIC_RELEASE);
    return true;
}

void Comm::give_up(const Refusal& why) {
    const std::lock_guard held(mutex_);
    if (part_ != nullptr) part_->give_up(why);
    if (waits_on_ != nullptr) waits_on_->abort();
}

void Comm::give_up_real(const std::string& why) {
    lacks_real = why;
    lacks_for_good_ = true;
}

void Comm::end_completion(Result result) {
    const std::lock_guard held(mutex_);
    waits_on_ = nullptr;
    // Who waits for the state learns only from it.
    if (!blocks && is_error(result)) state_ = result;
    is_completing_ = false;
}

void Comm::interrupt() {
    const std::lock_guard held(mutex_);
    is_aborted_ = true;
    if (waits_on_ != nullptr) waits_on_->abort();
    for (const auto& part : {part_, closing_}) {
        if (part == nullptr) continue;
        part->give_up(aborted());
        part->participant().abort();
    }
    for (const Opening* child : children_) {
        if (child->comm != nullptr && child->comm->is_opening_) child->comm->interrupt();
    }
}

Result Comm::abort_real() {
    Handle* real_one = real();
    if (real_one == nullptr || is_real_aborted_.exchange(true)) return Result::kSuccess;
    const auto result = sley::nccl::real().CommAbort(real_one);
    heard(result);
    return result;
}

Result Comm::abort() {
    interrupt();
    // The real library writes the communicator at once, and may block afterwards.
    while (is_opening_ && makes_real_ && real() == nullptr) {
        std::this_thread::sleep_for(kPoll);
    }
    // Otherwise the opening aborts it, which may be asking for its state. Those of children that don't
    // block ask for this one's.
    if (!blocks) wait_for_children();
    auto result = Result::kSuccess;
    if (!is_opening_ || makes_real_) result = abort_real();
    if (const auto part = detach()) {
        part->close(false);
        // In a group it may wait for a kernel that the abort of another communicator ends.
        if (group.depth == 0) part->wait_for_close();
    }
    if (result == Result::kSuccess) end();
    return result;
}

std::shared_ptr<Part> Comm::detach() {
    const std::lock_guard held(mutex_);
    if (part_ != nullptr) closing_ = std::exchange(part_, nullptr);
    return closing_;
}

Result Comm::destroy() {
    if (is_opening_ || is_completing_) return abort();
    wait_for_children();
    if (auto part = detach()) group.close(std::move(part), true);
    auto result = Result::kSuccess;
    if (real() != nullptr) result = sley::nccl::real().CommDestroy(real());
    heard(result);
    if (result == Result::kSuccess) end();
    return result;
}

Result Comm::finalize() {
    const char* why = is_completing_ ? "one whose NCCL is being made" : unready();
    if (why != nullptr) return not_ready("ncclCommFinalize", why);
    if (is_revoked_ || is_finalized_.exchange(true)) {
        return refuse(Result::kInvalidArgument, "N703", "a communicator for ncclCommFinalize",
                      is_revoked_ ? "one that was revoked" : "one that was finalized before",
                      "Finalize a communicator once.");
    }
    auto result = Result::kSuccess;
    const auto part = detach();
    if (part != nullptr) group.close(part, blocks);
    if (real() != nullptr) result = sley::nccl::real().CommFinalize(real());
    heard(result);
    const bool is_closing = part != nullptr && !blocks && !part->is_closed();
    return result == Result::kSuccess && is_closing ? Result::kInProgress : result;
}

Result Comm::revoke(int flags) {
    if (const char* why = unready()) return not_ready("ncclCommRevoke", why);
    if (is_finalized_ || is_revoked_.exchange(true)) {
        return refuse(Result::kInvalidArgument, "N703", "a communicator for ncclCommRevoke",
                      is_finalized_ ? "one that was finalized" : "one that was revoked before",
                      "Revoke a communicator once.");
    }
    give_up({"N608", "a communicator in use", "it was revoked"});
    return real() != nullptr ? PASS(CommRevoke)(handle(), flags) : Result::kSuccess;
}

}  // namespace sley::nccl
