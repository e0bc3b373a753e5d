// Running calls: one after another in the order of the requests, in the caller's thread or in one
// of their own.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/choice.hpp"
#include "engine/engine.hpp"
#include "fabric/outcome.hpp"

namespace sley {

// Runs a call to its end, `iterations` times back to back. meet: starts, and takes the time, after
// a barrier with all other ranks. The call must have passed `Engine::check`.
Outcome run_call(Engine& engine, const Call& call, std::int64_t iterations, double timeout_s,
                 bool meet);

// What runs a call: an engine, or one of a choice. varying: what runs it if other ranks make it with
// varying counts; null if none may.
struct Runner {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Choice> choice;
    std::shared_ptr<Engine> varying;

    // Throws what `Engine::check` does.
    void check(const Call& call) const {
        engine ? engine->check(call) : choice->check(call);
        if (varying) varying->check_lengths(static_cast<std::int64_t>(item_size(call.type)));
    }
};

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
    Outcome run(const Runner& runner, Call call, double timeout_s, std::int64_t iterations = 1);
    // Runs a call in the thread. Its memory must stay until the ticket has ended.
    std::shared_ptr<Ticket> submit(const Runner& runner, Call call, double timeout_s);

private:
    struct Task {
        std::uint64_t turn;
        Runner runner;
        Call call;
        double timeout_s;
        std::shared_ptr<Ticket> ticket;
    };

    void start();  // the thread, with the lock held
    void serve();
    // In its turn, the call runs to its end.
    Outcome run_in_turn(const Runner& runner, Call call, double timeout_s, std::int64_t iterations);
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
