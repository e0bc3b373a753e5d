// The transports without Python, for the sanitizers. The first argument names the case, the second
// the wire. Prints the first difference, and exits with 1.
#include <mutex>
#include <stdexcept>

#include "network_job.hpp"

namespace sley::network_test {

// Sizes, orders and contents, for shapes of FIFOs, twice over the same connections.
void exchange() {
    const struct {
        std::vector<int> hosts;
        FifoShape fifo;
        std::int32_t channels;
        int messages;
    } cases[] = {
        {{0, 1}, {1, 1, 1}, 1, 60},         {{0, 1}, {1, 5000, 4}, 3, 60},
        {{0, 1}, {8, 9000, 3}, 2, 100},     {{0, 0, 1, 1}, {4, 3000, 8}, 1, 60},
        {{0, 1, 2, 1}, {2, 4096, 5}, 2, 40},
    };
    for (const auto& c : cases) {
        Job job(c.hosts, c.fifo, c.channels);
        job.connect();
        job.run([&](std::int32_t r) { live(job, r, c.channels, c.messages); });
        close_all(job);
    }
}

// Two threads of each rank: one for the connections of channel 0, one for those of channel 1.
void threads() {
    Job job({0, 1}, {4, 2000, 8}, 2);
    job.connect();
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < 2; ++r) {
        for (std::int32_t c = 0; c < 2; ++c) {
            threads.emplace_back([&, r, c] {
                static std::mutex opening;  // a fabric's ends belong to one thread at a time
                Fabric& fabric = job.fabric(r);
                std::unique_lock lock(opening);
                std::byte* heap = job.heap_of(r) + c * 2000;
                SendingEnd out{fabric.sender(1 - r, job.index(1 - r, c, 2)),
                               Stream(r, 1 - r, c, 2000), heap};
                ReceivingEnd in{fabric.receiver(1 - r, job.index(r, c, 2)),
                                Stream(1 - r, r, c, 2000), 1 - r};
                lock.unlock();
                pump_until(fabric, [&] {
                    out.step(fabric, 100);
                    in.step(fabric, 100);
                    return out.stream.done() == 100 && in.stream.done() == 100 &&
                           out.fifo.has_consumed_all();
                });
                settle(fabric);
            });
        }
    }
    for (auto& thread : threads) thread.join();
    close_all(job);
}

// No more than `slots` messages leave before the receiver has taken one.
void credits() {
    Job job({0, 1}, {2, 100, 8}, 1);
    job.connect();
    Fabric& a = job.fabric(0);
    Fabric& b = job.fabric(1);
    FifoSender& out = a.sender(1, 1);
    std::byte* heap = job.heap_of(0);
    for (int i = 0; i < 5; ++i) {
        heap[i] = static_cast<std::byte>(i);
        out.publish({a.in_heap(heap + i, 1), 1, 7});
    }
    // Messages arrive before the receiver has opened the connection.
    const auto seen = [&](std::uint64_t number) {
        return b.fifo(0, 1).envelopes[number].sequence.load(std::memory_order_acquire) ==
               number + 1;
    };
    pump_until(b, [&] { return a.progress(), seen(1); });
    for (int i = 0; i < 200; ++i) a.progress(), b.progress();
    CHECK(!seen(2) && !a.is_settled() && !out.has_consumed(0));
    FifoReceiver& in = b.receiver(0, 1);
    for (int i = 0; i < 5; ++i) {
        pump_until(b, [&] { return a.progress(), in.has_message(); });
        CHECK(b.resolve(0, in.message().where, 1)[0] == static_cast<std::byte>(i));
        in.release();
        CHECK(!b.is_settled());
    }
    pump_until(b, [&] { return a.progress(), out.has_consumed_all(); });
    CHECK(a.is_settled() && b.is_settled());
    bool refused = false;
    out.publish({a.in_heap(heap, 101), 101, 7});
    try {
        a.progress();
    } catch (const std::length_error&) {
        refused = true;
    }
    CHECK(refused);
}

// The other host sees a rank's position and its host's heartbeats; all ranks learn of a failure.
void states() {
    Job job({0, 0, 1, 1}, {1, 8, 1}, 1);
    job.connect();
    job.fabric(0).control().enter({3, 4, 5});
    job.fabric(1).control().beat();
    job.fabric(1).control().arrive();
    job.fabric(1).control().leave({2, 4, 5});
    const auto pump_all = [&] {
        bool moved = false;
        for (std::int32_t r = 0; r < 4; ++r) moved = job.fabric(r).progress() || moved;
        CHECK(!moved);  // it is news only, which must not count as movement
    };
    Control& there = job.fabric(2).control();
    pump_until(job.fabric(2), [&] {
        pump_all();
        return there.call_of(0).sequence == 3 && there.beats() == 2 && there.find_absent(1) == 0 &&
               job.fabric(2).state(1).call_ended == 2;
    });
    CHECK(there.find_mismatch({3, 4, 6}) == 0 && there.find_mismatch({3, 4, 5}) == -1);
    const auto end = Clock::now() + std::chrono::milliseconds(200);
    while (Clock::now() < end) pump_all();
    CHECK(job.fabric(0).control().beats() == 1 && there.beats() == 2);  // none comes back
    job.fabric(3).control().fail(Failure::kMismatched, 2);
    pump_until(job.fabric(0), [&] {
        pump_all();
        return job.fabric(0).control().failed() && job.fabric(1).control().failed();
    });
    CHECK(job.fabric(1).control().failure_kind() == Failure::kMismatched);
    CHECK(job.fabric(1).control().failure_rank() == 2);
    job.pump(0).close(5.0);
    pump_until(job.fabric(3), [&] { return job.fabric(3).control().has_left(0); });
}

// A round that brings a whole message says so: the caller doesn't rest before it looks. And a rank
// that is alone on its host sleeps until a message comes.
void wakes() {
    Job job({0, 1, 1}, {4, 100, 8}, 1);
    job.connect();
    CHECK(job.fabric(0).control().doze && !job.fabric(1).control().doze);
    FifoSender& out = job.fabric(1).sender(0, 0);
    FifoReceiver& in = job.fabric(0).receiver(1, 0);
    for (int i = 0; i < 3; ++i) {
        out.publish({out.where(out.take_slot(8)), 8, 9});
        std::thread sender([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            pump_until(job.fabric(1), [&] { return job.fabric(1).is_settled(); });
        });
        const auto begin = Clock::now();
        while (!in.has_message()) {
            const bool moved = job.fabric(0).progress();
            CHECK(moved == in.has_message());
            if (!moved) job.fabric(0).control().doze(std::chrono::seconds(60));
        }
        CHECK(Clock::now() - begin < std::chrono::seconds(50));
        in.release();
        job.fabric(0).progress();
        sender.join();
    }
    close_all(job);
}

// A rank that ends is a failure, unless it closed the fabric before.
void ends() {
    Job job({0, 1, 2}, {1, 8, 1}, 1);
    job.connect();
    FifoSender& out = job.fabric(0).sender(1, 1);
    out.publish({out.where(out.take_slot(8)), 8, 9});
    job.pump(0).close(5.0);
    FifoReceiver& in = job.fabric(1).receiver(0, 1);
    pump_until(job.fabric(1), [&] { return in.has_message(); });
    pump_until(job.fabric(1), [&] { return job.fabric(1).control().has_left(0); });
    pump_until(job.fabric(2), [&] { return job.fabric(2).control().has_left(0); });
    for (int i = 0; i < 200; ++i) job.fabric(1).progress(), job.fabric(2).progress();
    CHECK(!job.fabric(1).control().failed() && !job.fabric(2).control().failed());
    job.fabrics[2]->set_transport(nullptr);
    job.pumps[2].reset();
    pump_until(job.fabric(1), [&] { return job.fabric(1).control().failed(); });
    CHECK(job.fabric(1).control().failure_kind() == Failure::kDied);
    CHECK(job.fabric(1).control().failure_rank() == 2);
    job.pump(1).close(5.0);
    job.pump(1).close(5.0);
    CHECK(!job.fabric(1).progress() && job.fabric(1).is_settled());
}

int test(int count, char** arguments) {
    const std::string name = count > 1 ? arguments[1] : "";
    if (count > 2) g_wire = arguments[2];
    const std::pair<const char*, void (*)()> cases[] = {
        {"exchange", exchange}, {"threads", threads},     {"credits", credits},
        {"states", states},     {"ends", ends},           {"killed", killed},
        {"wakes", wakes},
        {"cut", cut},           {"busy", busy},           {"strangers", strangers},
        {"absentees", absentees}, {"garbage", garbage},   {"pieces", pieces},
        {"recorded", recorded},   {"proofs", proofs},
    };
    for (const auto& [its_name, body] : cases) {
        if (name == its_name) {
            body();
            return 0;
        }
    }
    std::fprintf(stderr, "no case '%s'\n", name.c_str());
    return 2;
}

}  // namespace sley::network_test
