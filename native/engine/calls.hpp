// Running calls: one after another in the order of the requests, in the caller's thread or in one
// of their own.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine.hpp"
#include "fabric/outcome.hpp"

namespace sley {

// Runs a call to its end, `iterations` times back to back. meet: starts, and takes the time, after
// a barrier with all other ranks. The call must have passed `Engine::check`.
Outcome run_call(Engine& engine, const Call& call, std::int64_t iterations, double timeout_s,
                 bool meet);

// The collective calls of a communicator, numbered from 1 and run in the order of the requests,
// which must be the same on all ranks.
class Calls {
public:
    explicit Calls(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}
    ~Calls() { close(); }

    // Whether this is the thread that runs submitted calls, which must not wait for one.
    bool is_own_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

    // Ends the thread; its remaining calls abort. No call may be requested afterwards.
    void close();

    // Runs a call in the caller's thread when its turn has come, `iterations` times back to back.
    // Throws what `Engine::check` does.
    Outcome run(const std::shared_ptr<Engine>& engine, Call call, double timeout_s,
                std::int64_t iterations = 1);
    // Runs a call in the thread. Its memory must stay until the ticket has ended.
    std::shared_ptr<Ticket> submit(const std::shared_ptr<Engine>& engine, Call call,
                                   double timeout_s);

    // Counts a call that this rank does without a plan. what: of its record, which others see.
    void skip(std::uint64_t what);

private:
    struct Task {  // without an engine: a skipped call
        std::shared_ptr<Engine> engine;
        Call call;
        double timeout_s;
        std::shared_ptr<Ticket> ticket;
    };

    void start();  // the thread, with the lock held
    void serve();
    void run_skipped(const CallRecord& record);
    void end_turn();

    std::shared_ptr<Fabric> fabric_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    std::uint64_t asked_ = 0;  // calls so far
    std::uint64_t ended_ = 0;
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace sley
