// Connections from strangers, and malformed frames.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "network_job.hpp"

namespace sley::test {

// A client that connects to a rank's listener and sends any bytes.
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

// The first frame of a rank. `secret_bytes`: the number of bytes of the secret that are right.
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

// Strangers delay no rank: a silent one, one with another protocol, one that knows all but the
// secret, and one that wants another rank.
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
        CHECK(received.is_right(fabric.resolve(0, in.message().where, in.message().bytes)));
        received.next();
        in.release();
    }
    close(fd);
}

struct Nowhere final : FrameSink {
    std::byte* place(std::int32_t, const FrameHeader&) override { return bytes; }
    bool accept(std::int32_t, const FrameHeader&) override { return true; }
    void lose(std::int32_t, Failure) override {}

    std::byte bytes[64];
};

// A malformed frame of any kind ends the connection.
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
        out.publish({out.where(out.take_slot(8)), 8, 9});
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

}  // namespace sley::test
