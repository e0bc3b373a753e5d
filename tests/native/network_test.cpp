// The transports without Python, for the sanitizers: ranks as threads, each with its own fabric, in
// which the ranks of other hosts are remote. The first argument names the case, the second the
// wire. Exits with 1, and says where, at the first thing that is wrong.
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "fabric.hpp"
#include "network/pump.hpp"
#include "network/tcp.hpp"
#include "network/ucx.hpp"

namespace {

using namespace sley;
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

const char* g_wire = "tcp";

bool is_tcp() { return std::strcmp(g_wire, "tcp") == 0; }

std::unique_ptr<Wire> make_wire(std::int32_t rank, const std::vector<bool>& remote,
                                std::chrono::milliseconds silence) {
    if (!is_tcp()) {
        UcxSettings settings{std::getenv("SLEY_TEST_UCX"), {"lo"}, 0, 0, silence};
        return std::make_unique<UcxWire>(rank, remote, settings);
    }
    return std::make_unique<TcpWire>(rank, remote, std::vector<std::string>{"127.0.0.1"}, 0,
                                     silence);
}

// host_of: of each rank. Ranks of one host share a segment.
struct Job {
    std::vector<int> host_of;
    FabricShape shape;
    std::chrono::milliseconds silence{30000};
    std::vector<std::shared_ptr<Segment>> segments;  // of each host
    std::vector<std::shared_ptr<Segment>> heaps;     // of each rank
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
        const auto bytes = Fabric::bytes_side_by_side(shape);
        for (int h = 0; h < count; ++h) {
            segments.push_back(std::make_shared<Segment>(Segment::sparse(bytes, false)));
        }
        for (std::size_t r = 0; r < ranks; ++r) {
            heaps.push_back(std::make_shared<Segment>(Segment::create(kHeapBytes, false)));
        }
        for (auto& byte : secret) byte = std::byte{0x5a};
        for (std::size_t r = 0; r < ranks; ++r) fabrics.push_back(make_fabric(r));
        pumps.resize(ranks);
        for (std::size_t r = 0; r < ranks; ++r) make_pump(r);
    }

    std::int32_t ranks() const { return shape.ranks(); }

    std::shared_ptr<Fabric> make_fabric(std::size_t rank) {
        const auto own = static_cast<std::size_t>(host_of[rank]);
        auto regions = Fabric::side_by_side(shape, segments[own]);
        std::vector<Region> heap_regions(host_of.size());
        for (std::size_t r = 0; r < host_of.size(); ++r) {
            if (host_of[r] == host_of[rank]) {
                heap_regions[r] = {heaps[r], 0};
            } else {
                regions[r] = {};
            }
        }
        return std::make_shared<Fabric>(shape, static_cast<std::int32_t>(rank), regions,
                                        heap_regions);
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

// Pumps, until the condition holds; dies when it doesn't within the timeout.
void pump_until(Fabric& fabric, const std::function<bool()>& condition) {
    const auto end = Clock::now() + std::chrono::seconds(static_cast<int>(kTimeout));
    while (!condition()) {
        CHECK(Clock::now() < end);
        if (!fabric.progress()) sched_yield();
    }
}

void pump_for(Fabric& fabric, std::chrono::milliseconds time) {
    const auto end = Clock::now() + time;
    pump_until(fabric, [&] { return Clock::now() > end; });
}

void settle(Fabric& fabric) {
    pump_until(fabric, [&] { return fabric.is_settled(); });
}

// The messages of one connection: the same on both sides.
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
    std::byte byte_at(std::size_t i) const { return static_cast<std::byte>(seed_ + 31 * i + i / 251); }
    // Some are empty, some as long as a slot, many short.
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
            if (!fifo.has_slot(slots)) return false;
            const auto slot = fifo.take_slot(slots);
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
        CHECK(stream.is_right(fabric.resolve(src, message.where)));
        fifo.release();
        stream.next();
        return true;
    }
};

// Every rank sends `messages` to every other one on every channel, and checks what it receives.
void live(Job& job, std::int32_t rank, std::int32_t channels, int messages) {
    Fabric& fabric = job.fabric(rank);
    const auto slot_bytes = static_cast<std::size_t>(job.shape.fifo.slot_bytes);
    std::vector<SendingEnd> sending;
    std::vector<ReceivingEnd> receiving;
    std::byte* heap = job.heaps[static_cast<std::size_t>(rank)]->data();
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
            patience.moved();
        } else {
            CHECK(patience.wait() == Patience::Verdict::kWait);
        }
    }
}

void close_all(Job& job) {
    job.run([&](std::int32_t r) { job.pump(r).close(5.0); });
    for (std::int32_t r = 0; r < job.ranks(); ++r) CHECK(!job.fabric(r).control().failed());
}

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
                std::byte* heap = job.heaps[static_cast<std::size_t>(r)]->data() + c * 2000;
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
    std::byte* heap = job.heaps[0]->data();
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
        CHECK(b.resolve(0, in.message().where)[0] == static_cast<std::byte>(i));
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

// What a rank is at, and its host's beats, are seen on the other host; a failure is heard by all.
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
        return there.call_of(0).sequence == 3 && there.beats() == 2 && there.absent(1) == 0 &&
               job.fabric(2).state(1).call_ended == 2;
    });
    CHECK(there.mismatched({3, 4, 6}) == 0 && there.mismatched({3, 4, 5}) == -1);
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

// A rank that closes is no failure; one that ends without is.
void ends() {
    Job job({0, 1, 2}, {1, 8, 1}, 1);
    job.connect();
    FifoSender& out = job.fabric(0).sender(1, 1);
    out.publish({out.where(out.take_slot(1)), 8, 9});
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

// A process that is killed in the middle of messages.
void killed() {
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    const pid_t child = fork();
    const auto rank = child == 0 ? 1 : 0;
    Job job({0, 1}, {4, 60000, 4}, 1);
    std::string addresses[2];
    addresses[rank] = job.pump(rank).address();
    std::vector<char> other(1 << 16);
    const auto& own = addresses[rank];
    CHECK(write(rank == 0 ? there[1] : back[1], own.data(), own.size()) > 0);
    const auto length = read(rank == 0 ? back[0] : there[0], other.data(), other.size());
    CHECK(length > 0);
    addresses[1 - rank].assign(other.data(), static_cast<std::size_t>(length));
    auto meeting = job.meeting();
    meeting.addresses = {addresses[0], addresses[1]};
    job.pump(rank).connect(meeting);
    Fabric& fabric = job.fabric(rank);
    if (rank == 1) {
        FifoSender& out = fabric.sender(0, 0);
        for (;;) {
            if (out.has_slot(4)) out.publish({out.where(out.take_slot(4)), 60000, 1});
            fabric.progress();
        }
    }
    FifoReceiver& in = fabric.receiver(1, 0);
    pump_until(fabric, [&] { return in.has_message(); });
    kill(child, SIGKILL);
    CHECK(waitpid(child, nullptr, 0) == child);
    const auto since = Clock::now();
    pump_until(fabric, [&] { return fabric.control().failed(); });
    CHECK(fabric.control().failure_kind() == Failure::kDied);
    CHECK(fabric.control().failure_rank() == 1);
    CHECK(Clock::now() - since < std::chrono::seconds(20));
}

// A network of this process' own, that can be cut.
void own_network() {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) return;
    std::printf("no network namespace for this user\n");
    std::exit(kSkipped);
}

void set_network(bool up) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = static_cast<short>(up ? IFF_UP | IFF_RUNNING : 0);
    CHECK(ioctl(fd, SIOCSIFFLAGS, &request) == 0);
    close(fd);
}

// Ranks that wait notice that the network between them is cut, also where nothing is on its way.
void cut() {
    own_network();
    set_network(true);
    Job job({0, 1}, {1, 8, 1}, 1, std::chrono::milliseconds(1000));
    job.connect();
    job.run([&](std::int32_t r) { live(job, r, 1, 10); });
    job.run([&](std::int32_t r) { pump_for(job.fabric(r), std::chrono::milliseconds(200)); });
    set_network(false);
    job.run([&](std::int32_t r) {
        Control& control = job.fabric(r).control();
        pump_until(job.fabric(r), [&] { return control.failed(); });
        CHECK(control.failure_kind() == Failure::kCut && control.failure_rank() == 1 - r);
        CHECK(job.pump(r).loss_of(1 - r) == Failure::kCut);
    });
}

// A rank that is there and takes nothing, however much is on its way to it, is not cut off.
void busy() {
    const auto silence = std::chrono::milliseconds(200);
    Job job({0, 1}, {8, 4 << 20, 8}, 1, silence);
    job.connect();
    FifoSender& out = job.fabric(0).sender(1, 1);
    const auto stream = [] { return Stream(0, 1, 0, 4 << 20); };
    auto sent = stream(), received = stream();
    while (out.has_slot(8)) {
        const auto slot = out.take_slot(8);
        sent.write(out.data(slot), 4 << 20);
        out.publish({out.where(slot), 4 << 20, 1});
        sent.next();
    }
    pump_for(job.fabric(0), 8 * silence);
    CHECK(!job.fabric(0).control().failed() && !job.fabric(0).is_settled());
    FifoReceiver& in = job.fabric(1).receiver(0, 1);
    for (int i = 0; i < 8; ++i) {
        pump_until(job.fabric(1), [&] { return job.fabric(0).progress(), in.has_message(); });
        CHECK(received.is_right(job.fabric(1).resolve(0, in.message().where), 4 << 20));
        received.next();
        in.release();
    }
}

// What connects to a rank's listener, and what it sends there.
int dial(const std::string& address) {
    char host[64];
    unsigned port = 0;
    CHECK(std::sscanf(address.c_str(), "%63s %u", host, &port) == 2);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    CHECK(inet_pton(AF_INET, host, &to.sin_addr) == 1);
    CHECK(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    return fd;
}

// What a rank says first. `secret_bytes`: how many of the secret's it knows.
void greet(int fd, std::int32_t peer, const Secret& secret, std::size_t secret_bytes) {
    struct {
        char magic[4] = {'s', 'l', 'e', 'y'};
        std::uint32_t version = 1;
        std::int32_t rank = 0, peer = 0;
        std::byte secret[32] = {};
    } greeting;
    greeting.peer = peer;
    std::memcpy(greeting.secret, secret.data(), secret_bytes);
    CHECK(write(fd, &greeting, sizeof greeting) == sizeof greeting);
}

// Strangers hold up nobody: one who says nothing, one who speaks another language, one who knows
// all but the secret, and one who looks for another rank.
void strangers() {
    Job job({0, 1}, {1, 8, 1}, 1);
    const auto all = job.meeting();
    const int silent = dial(all.addresses[1]);
    const int foreign = dial(all.addresses[1]);
    CHECK(write(foreign, "GET / HTTP/1.0\r\n\r\n", 18) == 18);
    const int false_one = dial(all.addresses[1]);
    greet(false_one, 1, all.secret, kSecretBytes - 1);
    const int lost_one = dial(all.addresses[1]);
    greet(lost_one, 2, all.secret, kSecretBytes);
    std::atomic<bool> is_called{false};
    std::thread called([&] {
        auto with_glance = all;
        with_glance.glance = [&] { is_called = true; };
        job.pump(1).connect(with_glance);
    });
    char byte;
    for (const int fd : {foreign, false_one, lost_one}) {
        CHECK(read(fd, &byte, 1) <= 0);  // shut out at once, and nothing said
    }
    job.pump(0).connect(all);
    called.join();
    CHECK(is_called);
    job.run([&](std::int32_t r) { live(job, r, 1, 10); });
    for (const int fd : {silent, foreign, false_one, lost_one}) close(fd);
    close_all(job);
}

std::string error_of(const std::function<void()>& action, int code) {
    try {
        action();
    } catch (const std::system_error& error) {
        CHECK(error.code().value() == code);
        return error.what();
    }
    return "";
}

// Errors at the start name the rank.
void absentees() {
    {
        Job job({0, 1, 2}, {1, 8, 1}, 1);
        const auto what = error_of([&] { job.pump(1).connect(job.meeting(0.3)); }, ETIMEDOUT);
        CHECK(what.find("rank 0, rank 2") == 0);
    }
    {
        Job job({0, 1}, {1, 8, 1}, 1);
        auto wrong = job.meeting(2.0);
        wrong.secret[31] = std::byte{0};
        std::thread other([&] {
            CHECK(error_of([&] { job.pump(1).connect(job.meeting(1.0)); }, ETIMEDOUT) != "");
        });
        const int code = is_tcp() ? ECONNREFUSED : ETIMEDOUT;  // UCX has no way to refuse
        const auto what = error_of([&] { job.pump(0).connect(wrong); }, code);
        CHECK(what.find("rank 1") == 0);
        other.join();
    }
    {
        Job job({0, 1}, {1, 8, 1}, 1);
        const auto all = job.meeting(5.0);
        job.fabrics[1]->set_transport(nullptr);
        job.pumps[1].reset();
        const auto what = error_of([&] { job.pump(0).connect(all); }, ECONNREFUSED);
        CHECK(what.find("rank 1") == 0);
    }
}

// Frames arrive in pieces of any size.
void pieces() {
    Job job({0, 1}, {8, 9000, 8}, 1);
    const auto meeting = job.meeting();
    const int fd = dial(meeting.addresses[1]);
    greet(fd, 1, meeting.secret, kSecretBytes);
    job.pump(1).connect(meeting);
    char heard[48];
    CHECK(read(fd, heard, sizeof heard) == sizeof heard);
    Fabric& fabric = job.fabric(1);
    FifoReceiver& in = fabric.receiver(0, 1);
    Stream sent(0, 1, 0, 9000), received(0, 1, 0, 9000);
    std::mt19937 random(7);
    for (std::uint64_t number = 0; number < 100; ++number) {
        FrameHeader header;
        header.kind = FrameKind::kData;
        header.index = 1;
        header.bytes = static_cast<std::uint32_t>(sent.bytes());
        header.number = number;
        std::vector<std::byte> bytes(sizeof header + sent.bytes());
        std::memcpy(bytes.data(), &header, sizeof header);
        sent.write(bytes.data() + sizeof header);
        sent.next();
        for (std::size_t at = 0; at < bytes.size();) {
            const auto most = random() % 4 == 0 ? bytes.size() : 80;
            const auto piece = std::min<std::size_t>(1 + random() % most, bytes.size() - at);
            CHECK(write(fd, bytes.data() + at, piece) == static_cast<ssize_t>(piece));
            at += piece;
            if (random() % 2 == 0) fabric.progress();
        }
        pump_until(fabric, [&] { return in.has_message(); });
        CHECK(in.message().bytes == received.bytes());
        CHECK(received.is_right(fabric.resolve(0, in.message().where)));
        received.next();
        in.release();
    }
    close(fd);
}

struct Nowhere final : FrameSink {
    std::byte* place(std::int32_t, const FrameHeader&) override { return bytes; }
    bool arrived(std::int32_t, const FrameHeader&) override { return true; }
    void lost(std::int32_t, Failure) override {}

    std::byte bytes[64];
};

// Frames that cannot be right end the connection, whatever they are.
void garbage() {
    const auto frame = [](FrameKind kind, std::int32_t index, std::uint32_t bytes,
                          std::uint64_t number) {
        FrameHeader header;
        header.kind = kind;
        header.index = index;
        header.bytes = bytes;
        header.number = number;
        return header;
    };
    const FrameHeader wrong[] = {
        frame(FrameKind::kData, 2, 8, 0),     frame(FrameKind::kData, -1, 8, 0),
        frame(FrameKind::kData, 0, 9, 0),     frame(FrameKind::kData, 0, 8, 2),
        frame(FrameKind::kCredit, 0, 0, 1),   frame(FrameKind::kCredit, 1, 0, 2),
        frame(FrameKind::kFailure, 9, 0, 1),  frame(FrameKind::kFailure, 0, 0, 1000),
        frame(FrameKind::kState, 0, 1, 1),    frame(static_cast<FrameKind>(9), 0, 0, 0),
    };
    for (const auto& header : wrong) {
        Job job({0, 1}, {2, 8, 2}, 1);
        const auto wire = make_wire(1, {true, false}, job.silence);
        auto meeting = job.meeting();
        meeting.addresses[1] = wire->address();
        Nowhere nowhere;
        std::thread other([&] { job.pump(0).connect(meeting); });
        wire->connect(meeting, nowhere);
        other.join();
        FifoSender& out = job.fabric(0).sender(1, 1);
        out.publish({out.where(out.take_slot(1)), 8, 9});
        const std::byte payload[16] = {};
        wire->post(0, header, payload);
        wire->send();
        const auto pump_both = [&] { return wire->receive(nowhere), wire->send(); };
        Control& control = job.fabric(0).control();
        pump_until(job.fabric(0), [&] { return pump_both(), control.failed(); });
        CHECK(control.failure_kind() == Failure::kCut && control.failure_rank() == 1);
        CHECK(job.fabric(0).is_settled());
    }
}

}  // namespace

int main(int count, char** arguments) {
    const std::string name = count > 1 ? arguments[1] : "";
    if (count > 2) g_wire = arguments[2];
    const std::pair<const char*, void (*)()> cases[] = {
        {"exchange", exchange}, {"threads", threads},     {"credits", credits},
        {"states", states},     {"ends", ends},           {"killed", killed},
        {"cut", cut},           {"busy", busy},           {"strangers", strangers},
        {"absentees", absentees}, {"garbage", garbage},   {"pieces", pieces},
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
