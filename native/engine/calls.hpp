// Running calls: one after another in the order of the requests, in the caller's thread or in one
// of their own.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/choice.hpp"
#include "engine/engine.hpp"
#include "fabric/outcome.hpp"

namespace sley {

// Runs a call to its end, `iterations` times back to back. meet: starts, and takes the time, after
// a barrier with all other ranks. The call must have passed `Engine::check`.
Outcome run_call(Engine& engine, const Call& call, std::int64_t iterations, double timeout_s,
                 bool meet);

// What runs equal calls: an engine, or those of a choice; and `CallRecord::what` of the calls, which
// that of a choice's engine replaces. varying: what runs them if other ranks make them with varying
// counts; without an engine if none may.
struct Runner {
    Option own;
    std::shared_ptr<Choice> choice;
    Option varying;

    // Throws what `Engine::check` does.
    void check(const Call& call) const {
        own.engine ? own.engine->check(call) : choice->check(call);
        if (!varying.engine) return;
        varying.engine->check_lengths(static_cast<std::int64_t>(item_size(call.type)));
    }
    // The record of a call, without its number.
    CallRecord record_of(const Call& call) const {
        if (call.parts) return {0, own.what, kVaryingCount};
        return {0, own.what, static_cast<std::uint64_t>(call.count), varying.what};
    }
};

// The collective calls of a communicator, numbered from 1 and run in the order of the requests,
// which must be the same on all ranks.
class Calls {
public:
    explicit Calls(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}
    ~Calls() { close(); }

    // Whether this is the thread that runs submitted calls, or one that ends such a call: neither must
    // wait for a call.
    bool is_own_thread() const {
        return thread_.get_id() == std::this_thread::get_id() || ending == this;
    }

    // Ends the thread; its remaining calls abort. No call may be requested afterwards.
    void close();

    // Runs a call in the caller's thread when its turn has come, `iterations` times back to back;
    // meet: as for `run_call`, but not of a choice. The call has no record: the runner's is its.
    // Throws what `Engine::check` does.
    Outcome run(const Runner& runner, const Call& call, double timeout_s,
                std::int64_t iterations = 1, bool meet = false);
    // Runs a call in the thread. Its memory must stay until the ticket has ended. Fails for all ranks
    // if there is no thread.
    std::shared_ptr<Ticket> submit(const Runner& runner, const Call& call, double timeout_s);
    // Runs submitted calls up to one in the caller's thread, as far as the other has not begun them:
    // two changes of threads take longer than a small call.
    void run_up_to(const Ticket& last);

private:
    struct Task {
        std::uint64_t turn;
        Runner runner;
        Call call;
        double timeout_s;
        std::shared_ptr<Ticket> ticket;
    };

    static inline thread_local const Calls* ending = nullptr;

    bool start();  // the thread, with the lock held; false if the system has none
    void serve();
    std::optional<Task> take_next(const Ticket& last);
    void finish(Task& task);
    // In its turn, the call runs to its end.
    Outcome run_in_turn(const Runner& runner, Call call, double timeout_s,
                        std::int64_t iterations = 1, bool meet = false);
    Outcome run_choice(Choice& choice, Call call, double timeout_s, std::int64_t iterations);
    void agree(Choice& choice, double timeout_s);
    void end_turn();

    std::shared_ptr<Fabric> fabric_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    std::uint64_t asked_ = 0;  // calls so far
    std::uint64_t ended_ = 0;
    // The number of the current call, which only the thread in its turn uses. A request with a
    // choice may make several calls.
    std::uint64_t number_ = 0;
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace sley
