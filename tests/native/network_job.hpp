// Jobs for the tests of the transports: ranks as threads, each with its own fabric, in which the
// ranks of other hosts are remote.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fabric/fabric.hpp"
#include "network/pump.hpp"
#include "network/tcp.hpp"
#include "network/ucx.hpp"

namespace sley::network_test {

using Clock = std::chrono::steady_clock;

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (false)

constexpr double kTimeout = 60.0;
constexpr int kSkipped = 77;
constexpr std::size_t kHeapBytes = 1 << 16;

inline const char* g_wire = "tcp";

inline bool is_tcp() { return std::strcmp(g_wire, "tcp") == 0; }

inline std::unique_ptr<Wire> make_wire(std::int32_t rank, const std::vector<bool>& remote,
                                std::chrono::milliseconds silence) {
    if (!is_tcp()) {
        UcxSettings settings{std::getenv("SLEY_TEST_UCX"), {"lo"}, 0, 0, silence};
        return std::make_unique<UcxWire>(rank, remote, settings);
    }
    return std::make_unique<TcpWire>(rank, remote, std::vector<std::string>{"127.0.0.1"}, 0,
                                     silence);
}

// host_of: the host of each rank. Ranks of one host share a segment.
struct Job {
    std::vector<int> host_of;
    FabricShape shape;
    std::chrono::milliseconds silence{30000};
    std::vector<std::shared_ptr<Segment>> segments;  // of each host
    Heaps heaps;                                     // of each rank
    std::vector<std::shared_ptr<Fabric>> fabrics;
    std::vector<std::shared_ptr<Pump>> pumps;
    Secret secret{};

    Job(std::vector<int> hosts, FifoShape fifo, std::int32_t channels,
        std::chrono::milliseconds limit = std::chrono::milliseconds(30000))
        : host_of(std::move(hosts)), silence(limit) {
        const auto ranks = host_of.size();
        shape.fifos.assign(ranks, static_cast<std::int32_t>(ranks) * channels);
        shape.fifo = fifo;
        const int count = *std::max_element(host_of.begin(), host_of.end()) + 1;
        for (int h = 0; h < count; ++h) {
            segments.push_back(Segment::sparse(shape.bytes_of(ranks_of(h)), false));
        }
        for (std::size_t r = 0; r < ranks; ++r) {
            heaps.push_back(std::make_shared<Heap>());
            heaps.back()->grow(kHeapBytes);
        }
        for (auto& byte : secret) byte = std::byte{0x5a};
        for (std::size_t r = 0; r < ranks; ++r) fabrics.push_back(make_fabric(r));
        pumps.resize(ranks);
        for (std::size_t r = 0; r < ranks; ++r) make_pump(r);
    }

    std::int32_t ranks() const { return shape.ranks(); }

    std::vector<std::int32_t> ranks_of(int host) const {
        std::vector<std::int32_t> found;
        for (std::int32_t r = 0; r < ranks(); ++r) {
            if (host_of[static_cast<std::size_t>(r)] == host) found.push_back(r);
        }
        return found;
    }

    std::shared_ptr<Fabric> make_fabric(std::size_t rank) {
        const auto own = host_of[rank];
        auto regions = Fabric::side_by_side(shape, segments[static_cast<std::size_t>(own)],
                                            ranks_of(own));
        return std::make_shared<Fabric>(shape, static_cast<std::int32_t>(rank), regions, heaps);
    }

    std::byte* heap_of(std::int32_t rank) {
        return heaps[static_cast<std::size_t>(rank)]->at(0, kHeapBytes);
    }

    void make_pump(std::size_t rank) {
        std::vector<bool> remote;
        for (const int host : host_of) remote.push_back(host != host_of[rank]);
        pumps[rank] = std::make_shared<Pump>(
            *fabrics[rank], make_wire(static_cast<std::int32_t>(rank), remote, silence));
        fabrics[rank]->set_transport(pumps[rank]);
    }

    Meeting meeting(double seconds = kTimeout) const {
        Meeting m;
        for (const auto& pump : pumps) m.addresses.push_back(pump->address());
        m.secret = secret;
        m.deadline =
            Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
        return m;
    }

    // A thread for each rank.
    void run(const std::function<void(std::int32_t)>& body) {
        std::vector<std::thread> threads;
        for (std::int32_t r = 0; r < ranks(); ++r) threads.emplace_back(body, r);
        for (auto& thread : threads) thread.join();
    }

    void connect() {
        const auto all = meeting();
        run([&](std::int32_t r) { pumps[static_cast<std::size_t>(r)]->connect(all); });
    }

    Fabric& fabric(std::int32_t rank) { return *fabrics[static_cast<std::size_t>(rank)]; }
    Pump& pump(std::int32_t rank) { return *pumps[static_cast<std::size_t>(rank)]; }
    std::int32_t index(std::int32_t dst, std::int32_t channel, std::int32_t channels) const {
        return dst * channels + channel;
    }
};

// Pumps until the condition holds; aborts if it doesn't within the timeout.
inline void pump_until(Fabric& fabric, const std::function<bool()>& condition) {
    const auto end = Clock::now() + std::chrono::seconds(static_cast<int>(kTimeout));
    while (!condition()) {
        CHECK(Clock::now() < end);
        if (!fabric.progress()) sched_yield();
    }
}

inline void pump_for(Fabric& fabric, std::chrono::milliseconds time) {
    const auto end = Clock::now() + time;
    pump_until(fabric, [&] { return Clock::now() > end; });
}

inline void settle(Fabric& fabric) {
    pump_until(fabric, [&] { return fabric.is_settled(); });
}

// The messages of a connection, equal on both sides.
class Stream {
public:
    Stream(std::int32_t src, std::int32_t dst, std::int32_t channel, std::size_t slot_bytes)
        : random_(static_cast<std::uint32_t>(src * 10007 + dst * 101 + channel)),
          slot_bytes_(slot_bytes) {
        draw();
    }

    std::size_t bytes() const { return bytes_; }
    std::uint32_t signature() const { return static_cast<std::uint32_t>(seed_ >> 3); }
    bool in_heap() const { return seed_ % 5 == 0; }
    int done() const { return done_; }

    void write(std::byte* data) const { write(data, bytes_); }
    void write(std::byte* data, std::size_t bytes) const {
        for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_at(i);
    }
    bool is_right(const std::byte* data) const { return is_right(data, bytes_); }
    bool is_right(const std::byte* data, std::size_t bytes) const {
        for (std::size_t i = 0; i < bytes; ++i) {
            if (data[i] != byte_at(i)) return false;
        }
        return true;
    }
    void next() {
        ++done_;
        draw();
    }

private:
    std::byte byte_at(std::size_t i) const {
        return static_cast<std::byte>(seed_ + 31 * i + i / 251);
    }
    // Some are empty, some fill a slot, many are short.
    void draw() {
        seed_ = static_cast<std::uint32_t>(random_());
        const auto kind = random_() % 8;
        bytes_ = kind == 0 ? 0 : kind == 1 ? slot_bytes_ : random_() % (slot_bytes_ + 1);
        if (kind > 4) bytes_ = std::min<std::size_t>(bytes_, 1 + random_() % 64);
    }

    std::mt19937 random_;
    std::size_t slot_bytes_, bytes_ = 0;
    std::uint32_t seed_ = 0;
    int done_ = 0;
};

struct SendingEnd {
    FifoSender& fifo;
    Stream stream;
    std::byte* heap;  // this connection's part of it
    std::uint64_t heap_user = 0;  // the last message that lies there, and its number + 1

    bool step(Fabric& fabric, int messages) {
        if (stream.done() == messages) return false;
        const auto slots = static_cast<std::size_t>(fabric.shape().fifo.slots);
        Message message{0, static_cast<std::uint32_t>(stream.bytes()), stream.signature()};
        if (stream.in_heap()) {
            if (!fifo.has_envelope()) return false;
            if (heap_user > 0 && !fifo.has_consumed(heap_user - 1)) return false;
            stream.write(heap);
            heap_user = fifo.next() + 1;
            message.where = fabric.in_heap(heap, stream.bytes());
        } else {
            if (!fifo.has_slot(slots, stream.bytes())) return false;
            const auto slot = fifo.take_slot(stream.bytes());
            stream.write(fifo.data(slot));
            message.where = fifo.where(slot);
        }
        fifo.publish(message);
        stream.next();
        return true;
    }
};

struct ReceivingEnd {
    FifoReceiver& fifo;
    Stream stream;
    std::int32_t src;

    bool step(Fabric& fabric, int messages) {
        if (stream.done() == messages || !fifo.has_message()) return false;
        const Message message = fifo.message();
        CHECK(message.bytes == stream.bytes());
        CHECK(message.signature == stream.signature());
        CHECK(stream.is_right(fabric.resolve(src, message.where, message.bytes)));
        fifo.release();
        stream.next();
        return true;
    }
};

// Every rank sends `messages` to every other rank on every channel, and checks those it receives.
inline void live(Job& job, std::int32_t rank, std::int32_t channels, int messages) {
    Fabric& fabric = job.fabric(rank);
    const auto slot_bytes = static_cast<std::size_t>(job.shape.fifo.slot_bytes);
    std::vector<SendingEnd> sending;
    std::vector<ReceivingEnd> receiving;
    std::byte* heap = job.heap_of(rank);
    for (std::int32_t other = 0; other < job.ranks(); ++other) {
        if (other == rank) continue;
        for (std::int32_t c = 0; c < channels; ++c) {
            sending.push_back({fabric.sender(other, job.index(other, c, channels)),
                               Stream(rank, other, c, slot_bytes), heap});
            heap += slot_bytes;
            receiving.push_back({fabric.receiver(other, job.index(rank, c, channels)),
                                 Stream(other, rank, c, slot_bytes), other});
        }
    }
    Patience patience(fabric.control(), kTimeout);
    for (;;) {
        bool moved = false, done = true;
        for (auto& end : sending) {
            moved = end.step(fabric, messages) || moved;
            done = done && end.stream.done() == messages && end.fifo.has_consumed_all();
        }
        for (auto& end : receiving) {
            moved = end.step(fabric, messages) || moved;
            done = done && end.stream.done() == messages;
        }
        moved = fabric.progress() || moved;
        if (done && fabric.is_settled()) break;
        if (moved) {
            fabric.control().beat();
            patience.reset();
        } else {
            CHECK(patience.wait() == Patience::Verdict::kWait);
        }
    }
}

inline void close_all(Job& job) {
    job.run([&](std::int32_t r) { job.pump(r).close(5.0); });
    for (std::int32_t r = 0; r < job.ranks(); ++r) CHECK(!job.fabric(r).control().failed());
}

// The cases. network_test.cpp:
void exchange();
void threads();
void credits();
void states();
void ends();
// network_failures.cpp:
void killed();
void cut();
void busy();
// network_strangers.cpp:
void strangers();
void recorded();
void proofs();
void absentees();
void pieces();
void garbage();

}  // namespace sley::network_test
