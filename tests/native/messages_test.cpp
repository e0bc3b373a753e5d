// Point-to-point messages without Python, for the sanitizers: random traffic, then cases that must
// not block, and cases that must fail. Prints the first difference and exits with 1. Arguments: the
// first seed and the number of random worlds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "messages_world.hpp"

namespace sley::messages_test {

constexpr double kShort = 0.2;  // seconds
const FifoShape kUsual{4, 1024, 8};

std::vector<std::byte> bytes_of(std::size_t size, int value) {
    return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

// Threads of one rank exchange messages with the others at the same time, each waiting in its call.
void test_threads_of_a_rank() {
    World world(2, kUsual);
    world.run([&](std::int32_t rank) {
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&, t] {
                for (int i = 0; i < 50; ++i) {
                    auto out = bytes_of(static_cast<std::size_t>(i * 40), i + t + rank);
                    auto in = bytes_of(out.size(), 0);
                    const auto size = static_cast<std::int64_t>(out.size());
                    auto& messages = world.of(rank);
                    const auto got = messages.recv(in.data(), size, 1 - rank, t, kLong);
                    messages.send_now(out.data(), size, 1 - rank, t, kLong);
                    require(messages.wait(*got, kLong), "a message among threads comes");
                    require(in == bytes_of(out.size(), i + t + 1 - rank), "it is its thread's");
                }
            });
        }
        for (auto& thread : threads) thread.join();
    });
}

// A peer that receives nothing must not delay messages to others.
void test_peers_do_not_block_one_another() {
    World world(3, kUsual);
    const auto large = bytes_of(100000, 1);
    auto pending = world.of(0).send(large.data(), 100000, 2, 0, kLong);
    auto in = bytes_of(100000, 0);
    std::thread other([&] { world.of(1).recv_now(in.data(), 100000, 0, 0, kLong); });
    const auto sent = world.of(0).send_now(large.data(), 100000, 1, 0, kLong);
    other.join();
    require(sent.status == Status::kDone && in == large, "a send to a peer that listens is done");
    require(!pending->is_done(), "a send to a peer that doesn't listen is not");
    world.of(2).recv_now(in.data(), 100000, 0, 0, kLong);
    require(pending->wait(kLong), "until it does");
}

// An earlier message of another tag is moved to memory of its own, however large.
void test_tags_overtake() {
    World world(2, kUsual);
    const auto large = bytes_of(100000, 1), small = bytes_of(10, 2);
    auto first = world.of(0).send(large.data(), 100000, 1, 5, kLong);
    auto second = world.of(0).send(small.data(), 10, 1, 6, kLong);
    auto in = bytes_of(10, 0);
    require(world.of(1).recv_now(in.data(), 10, 0, 6, kLong).status == Status::kDone, "it comes");
    require(in == small, "with what was sent");
    require(first->wait(kLong) && second->wait(kLong), "both sends are done");
    auto rest = bytes_of(100000, 0);
    require(world.of(1).recv_now(rest.data(), 100000, kAnySource, 5, kLong).rank == 0, "rank 0's");
    require(rest == large, "the earlier message waits in memory of its own");
}

// A message without a receive stays in its FIFO, whatever else its receiver does.
void test_unwanted_messages_wait_in_the_fifo() {
    World world(3, kUsual);
    auto data = bytes_of(8, 1), other = bytes_of(8, 0);
    world.of(0).send_now(data.data(), 8, 1, 0, kLong);
    world.of(1).recv_now(other.data(), 8, 0, 0, kLong);
    auto pending = world.of(1).recv(other.data(), 8, 2, 0, kLong);
    std::vector<std::shared_ptr<Ticket>> sends;
    const auto whole = bytes_of(1000, 1);  // with its header more than half a slot
    for (int i = 0; i < 6; ++i) sends.push_back(world.of(0).send(whole.data(), 1000, 1, 0, kLong));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    require(sends[3]->is_done(), "as many sends are done as there are slots");
    require(!sends[4]->is_done(), "and no more");
    auto in = bytes_of(1000, 0);
    for (int i = 0; i < 6; ++i) world.of(1).recv_now(in.data(), 1000, 0, 0, kLong);
    require(sends[5]->wait(kLong), "and all in the end");
    require(in == whole, "with what was sent");
}

// Small messages share the slots.
void test_as_many_small_messages_as_envelopes_are_buffered() {
    World world(2, kUsual);
    std::vector<std::vector<std::byte>> sent;
    std::vector<std::shared_ptr<Ticket>> sends;
    for (int i = 0; i < 9; ++i) sent.push_back(bytes_of(8, static_cast<unsigned>(i)));
    for (const auto& data : sent) sends.push_back(world.of(0).send(data.data(), 8, 1, 0, kLong));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    require(sends[7]->is_done(), "as many small sends are done as there are envelopes");
    require(!sends[8]->is_done(), "and no more");
    for (const auto& data : sent) {
        auto in = bytes_of(8, 255);
        world.of(1).recv_now(in.data(), 8, 0, 0, kLong);
        require(in == data, "they come in order, with what was sent");
    }
}

// Once data in the heap have been read, the sender may overwrite them; no slot is needed for this.
void test_heap_data_are_read_in_place(std::int64_t bytes) {
    World world(2, {1, 64, 8});
    const auto size = static_cast<std::size_t>(bytes);
    auto* data = world.heap[0];
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i % 251);
    auto send = world.of(0).send(data, bytes, 1, 0, kLong);
    data[size - 1] = std::byte{252};
    require(!send->is_done(), "a send from the heap waits for its reader");
    auto in = bytes_of(size, 0);
    world.of(1).recv_now(in.data(), bytes, 0, 0, kLong);
    require(send->wait(kLong), "and is done then");
    require(std::equal(in.begin(), in.end(), data), "what was sent is what came");
    require(in[size - 1] == std::byte{252}, "it was read in place");
}

// Whether the messages are still in the FIFOs, or in memory of their own.
void test_any_source_is_fair(bool taken) {
    World world(3, kUsual);
    auto data = bytes_of(8, 1);
    for (std::int32_t src = 1; src < 3; ++src) {
        for (int i = 0; i < 3; ++i) world.of(src).send_now(data.data(), 8, 0, 0, kLong);
        world.of(src).send_now(data.data(), 8, 0, 1, kLong);
        if (taken) world.of(0).recv_now(data.data(), 8, src, 1, kLong);
    }
    int from[3] = {};
    for (int i = 0; i < 4; ++i) ++from[world.of(0).recv_now(data.data(), 8, -1, 0, kLong).rank];
    require(from[1] == 2 && from[2] == 2, "sources take turns");
}

// A message to another host arrives although its sender and its receiver make no further calls.
void test_what_is_sent_leaves() {
    World world(2, kUsual, true);
    auto data = bytes_of(8, 1), in = bytes_of(8, 0);
    for (int i = 0; i < 6; ++i) {
        world.of(0).send_now(data.data(), 8, 1, 0, kLong);
        if (i >= 2) world.of(1).recv_now(in.data(), 8, 0, 0, kLong);
    }
    require(in == data, "it arrives");
    while (!world.fabric[0]->is_settled()) std::this_thread::yield();
    while (!world.fabric[1]->is_settled()) std::this_thread::yield();
}

// Of two receives that match a message, the one posted first receives it.
void test_receives_take_turns(std::int32_t first, std::int32_t second) {
    World world(2, kUsual);
    auto data = bytes_of(8, 1), in = bytes_of(8, 0);
    auto one = world.of(0).recv(in.data(), 8, first, 0, kLong);
    auto two = world.of(0).recv(in.data(), 8, second, 0, kLong);
    world.of(1).send_now(data.data(), 8, 0, 0, kLong);
    require(one->wait(kLong) && !two->is_done(), "the first receive takes the first message");
    world.of(1).send_now(data.data(), 8, 0, 0, kLong);
    require(two->wait(kLong), "and the second one the second");
}

void test_callbacks_may_post() {
    World world(2, kUsual);
    auto data = bytes_of(8, 3), in = bytes_of(8, 0);
    std::shared_ptr<Ticket> answer;
    std::atomic<bool> posted{false};
    auto asked = world.of(0).recv(in.data(), 8, 1, 0, kLong);
    asked->on_done([&] {
        answer = world.of(0).send(in.data(), 8, 1, 1, kLong);
        posted = true;
    });
    world.of(1).send_now(data.data(), 8, 0, 0, kLong);
    auto back = bytes_of(8, 0);
    world.of(1).recv_now(back.data(), 8, 0, 1, kLong);
    while (!posted) std::this_thread::yield();
    require(back == data && answer->wait(kLong), "a callback's message arrives");
}

void require_failed(World& world, std::int32_t rank, Failure kind, std::int32_t culprit) {
    require(world.control(rank).failure_kind() == kind, "the failure has its kind");
    require(world.control(rank).failure_rank() == culprit, "and its rank");
}

void test_mismatch(bool posted_first, std::int32_t src) {
    World world(2, kUsual);
    auto data = bytes_of(20, 1), in = bytes_of(10, 0);
    Outcome got;
    if (posted_first) {
        auto ticket = world.of(0).recv(in.data(), 10, src == 0 ? kAnySource : src, 7, kLong);
        world.of(src).send_now(data.data(), 20, 0, 7, kLong);
        require(ticket->wait(kLong), "a receive of another size ends");
        got = ticket->outcome();
    } else {
        world.of(src).send_now(data.data(), 20, 0, 7, kLong);
        got = world.of(0).recv_now(in.data(), 10, src, 7, kLong);
    }
    require(got.status == Status::kMismatched, "a receive of another size is one");
    require(got.rank == src && got.bytes == 20, "it says whose and how large");
    require(in == bytes_of(10, 0), "it wrote nothing");
    require_failed(world, 1, Failure::kMismatched, src);
    const auto later = world.of(1).send_now(data.data(), 20, 0, 7, kLong);
    require(later.status == Status::kAborted, "the sender learns of it");
}

void test_receives_stall(std::int32_t src, bool now) {
    World world(2, kUsual);
    auto in = bytes_of(8, 0), others = bytes_of(8, 0);
    auto patient = world.of(1).recv(others.data(), 8, 0, 3, kLong);
    auto& messages = world.of(0);
    Outcome end;
    if (now) {
        end = messages.recv_now(in.data(), 8, src, 0, kShort);
    } else {
        auto ticket = messages.recv(in.data(), 8, src, 0, kShort);
        require(ticket->wait(kLong), "a stalled operation ends");
        end = ticket->outcome();
    }
    require(end.status == Status::kStalled, "a receive that nobody sends to stalls");
    require(end.rank == src, "it says whom it waited for");
    require_failed(world, 1, Failure::kStalled, 0);
    require(patient->wait(kLong), "the others' operations end");
    require(patient->outcome().status == Status::kAborted, "as aborted");
}

// Sends without a receive stall, staged and pulled.
void test_sends_stall() {
    for (const bool pulled : {false, true}) {
        World world(2, kUsual);
        const auto data = bytes_of(100000, 1);
        const auto end =
            world.of(0).send_now(pulled ? world.heap[0] : data.data(), 100000, 1, 0, kShort);
        require(end.status == Status::kStalled && end.rank == 1, "a send that nobody takes stalls");
        require_failed(world, 0, Failure::kStill, 1);
    }
}

// An operation's timeout runs while it is first in its queue and no data move.
void test_turns_are_not_stalls() {
    World world(2, kUsual);
    auto in = bytes_of(8, 0), data = bytes_of(8, 1);
    std::vector<std::shared_ptr<Ticket>> receives;
    for (int i = 0; i < 6; ++i) receives.push_back(world.of(0).recv(in.data(), 8, 1, 0, 1.5));
    for (int i = 0; i < 6; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        world.of(1).send_now(data.data(), 8, 0, 0, kLong);
    }
    for (auto& ticket : receives) {
        require(ticket->wait(kLong), "a receive ends");
        require(ticket->outcome().status == Status::kDone, "a receive behind others doesn't stall");
    }
}

void test_gone(bool dead, std::int32_t src) {
    World world(3, kUsual);
    auto data = bytes_of(8, 1);
    world.of(1).send_now(data.data(), 8, 0, 0, kLong);
    if (dead) {
        world.control(0).is_dead = [](std::int32_t) { return true; };
    } else {
        world.control(1).close();
        world.control(2).close();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // longer than a glance
    const auto last = world.of(0).recv_now(data.data(), 8, src, 0, kLong);
    require(last.status == Status::kDone && last.rank == 1, "what a rank sent before comes");
    auto none = world.of(0).recv(data.data(), 8, src, 0, kLong);
    require(world.of(0).wait(*none, kLong), "nothing comes from a rank that is gone");
    require(none->outcome().status == Status::kAborted, "waiting for it is aborted");
    const auto culprit = world.control(0).failure_rank();
    require(culprit == 1 || (src == kAnySource && culprit == 2), "the failure names who is gone");
    require_failed(world, 0, dead ? Failure::kDied : Failure::kLeft, culprit);
}

void test_send_to_one_who_left() {
    World world(2, kUsual);
    world.control(1).close();
    const auto data = bytes_of(100000, 1);
    const auto end = world.of(0).send_now(data.data(), 100000, 1, 0, kLong);
    require(end.status == Status::kAborted, "a send to a rank that has left is aborted");
    require_failed(world, 0, Failure::kLeft, 1);
}

void test_ending() {
    World world(2, kUsual);
    auto data = bytes_of(100000, 1);
    std::vector<std::shared_ptr<Ticket>> tickets;
    tickets.push_back(world.of(0).recv(data.data(), 8, 1, 0, kLong));
    tickets.push_back(world.of(0).recv(data.data(), 8, kAnySource, 1, kLong));
    tickets.push_back(world.of(0).send(data.data(), 100000, 1, 0, kLong));
    tickets.push_back(world.of(0).send(world.heap[0], 100000, 1, 0, kLong));
    require(!world.of(0).wait(*tickets[0], 0.01), "waiting ends at its time");
    Outcome waiting;
    std::thread other([&] { waiting = world.of(0).recv_now(data.data(), 8, 1, 2, kLong); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world.of(0).close();
    other.join();
    require(waiting.status == Status::kAborted, "a caller who waits is sent away");
    const auto late = world.of(0).send(data.data(), 8, 1, 2, kLong);
    require(late->outcome().status == Status::kAborted, "and so is one who comes later");
    world.messages[0].reset();
    for (auto& ticket : tickets) {
        require(ticket->is_done(), "with closing all operations end");
        require(ticket->outcome().status == Status::kAborted, "as aborted");
    }
}

template <class Do>
void require_refused(Do&& refused, const char* what) {
    try {
        refused();
    } catch (const std::invalid_argument&) {
        return;
    }
    require(false, what);
}

void test_refusals() {
    World world(2, kUsual);
    auto data = bytes_of(8, 1);
    auto& messages = world.of(0);
    require_refused([&] { messages.send(data.data(), 8, 2, 0, kLong); }, "there is no rank 2");
    require_refused([&] { messages.send_now(data.data(), 8, -1, 0, kLong); }, "nor -1 to send to");
    require_refused([&] { messages.recv(data.data(), 8, -2, 0, kLong); }, "nor -2 to receive from");
    require_refused([&] { messages.recv_now(data.data(), -1, 1, 0, kLong); }, "nor -1 bytes");
    require_refused([] { World({2, {4, 63, 8}}); }, "a header needs 64 bytes");
}

int test(int argc, char** argv) {
    const unsigned first = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1;
    const unsigned worlds = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 16;
    for (unsigned seed = first; seed < first + worlds; ++seed) test_random_traffic(seed);
    test_threads_of_a_rank();
    test_peers_do_not_block_one_another();
    test_tags_overtake();
    test_unwanted_messages_wait_in_the_fifo();
    test_as_many_small_messages_as_envelopes_are_buffered();
    test_heap_data_are_read_in_place(1'000'000);
    test_heap_data_are_read_in_place(17'000'001);  // past the caches
    test_what_is_sent_leaves();
    for (const bool taken : {false, true}) test_any_source_is_fair(taken);
    test_receives_take_turns(1, kAnySource);
    test_receives_take_turns(kAnySource, 1);
    test_callbacks_may_post();
    for (const bool posted_first : {false, true}) {
        for (std::int32_t src = 0; src < 2; ++src) test_mismatch(posted_first, src);
    }
    for (const bool now : {false, true}) {
        test_receives_stall(1, now);
        test_receives_stall(kAnySource, now);
    }
    test_sends_stall();
    test_turns_are_not_stalls();
    for (const bool dead : {false, true}) {
        test_gone(dead, 1);
        test_gone(dead, kAnySource);
    }
    test_send_to_one_who_left();
    test_ending();
    test_refusals();
    return 0;
}

}  // namespace sley::messages_test
