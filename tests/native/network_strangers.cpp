// Connections from strangers, and malformed frames.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "network_job.hpp"

namespace sley::network_test {

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

std::string error_of(const std::function<void()>& action, int code) {
    try {
        action();
    } catch (const std::system_error& error) {
        CHECK(error.code().value() == code);
        return error.what();
    }
    return "";
}

// What both ends of a connection say first; introduction.hpp has the same.
struct Hello {
    char magic[4] = {'s', 'l', 'e', 'y'};
    std::uint32_t version = 2;
    std::int32_t rank = 0, peer = 1;
    Nonce nonce{};
};
struct Greeting {
    Hello hello;
    Digest proof;
};

template <class T>
void say(int fd, const T& words) {
    CHECK(write(fd, &words, sizeof words) == static_cast<ssize_t>(sizeof words));
}

template <class T>
T hear(int fd) {
    T words;
    for (std::size_t at = 0; at < sizeof words;) {
        const auto more = read(fd, reinterpret_cast<char*>(&words) + at, sizeof words - at);
        CHECK(more > 0);
        at += static_cast<std::size_t>(more);
    }
    return words;
}

// Nothing more is said, and the connection ends.
bool is_shut(int fd) {
    char byte;
    return read(fd, &byte, 1) <= 0;
}

// Connects as rank 0, which knows the secret.
void shake_hands(int fd, const Secret& secret) {
    const Hello own;
    say(fd, own);
    const auto theirs = hear<Greeting>(fd);
    const std::string_view accepts = "accepts", connects = "connects";
    const auto& hello = theirs.hello;
    CHECK(is_same(theirs.proof, hmac(secret, {accepts, bytes_of(own), bytes_of(hello)})));
    say(fd, hmac(secret, {connects, bytes_of(own), bytes_of(hello)}));
}

// Strangers delay no rank: a silent one, one with another protocol, one with an older version, one
// that knows all but the secret, one that sends back what it has heard, and one that wants another
// rank.
void strangers() {
    Job job({0, 1}, {1, 8, 1}, 1);
    const auto all = job.meeting();
    const int silent = dial(all.addresses[1]);
    const int foreign = dial(all.addresses[1]);
    CHECK(write(foreign, "GET / HTTP/1.0\r\n\r\n", 18) == 18);
    const int old_one = dial(all.addresses[1]);
    Hello old;
    old.version = 1;
    say(old_one, old);
    const int false_one = dial(all.addresses[1]);
    say(false_one, Hello{});
    const int echo = dial(all.addresses[1]);
    say(echo, Hello{});
    const int lost_one = dial(all.addresses[1]);
    Hello lost;
    lost.peer = 2;
    say(lost_one, lost);
    std::atomic<bool> is_called{false};
    std::thread called([&] {
        auto with_glance = all;
        with_glance.glance = [&] { is_called = true; };
        job.pump(1).connect(with_glance);
    });
    auto almost = hear<Greeting>(false_one).proof;
    almost[31] ^= std::byte{1};
    say(false_one, almost);
    say(echo, hear<Greeting>(echo).proof);
    for (const int fd : {foreign, old_one, false_one, echo, lost_one}) CHECK(is_shut(fd));
    job.pump(0).connect(all);
    called.join();
    CHECK(is_called);
    job.run([&](std::int32_t r) { live(job, r, 1, 10); });
    for (const int fd : {silent, foreign, old_one, false_one, echo, lost_one}) close(fd);
    close_all(job);
}

// A listener at any port of this host, and its address.
struct Listener {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    std::string address;

    Listener() {
        sockaddr_in at{};
        at.sin_family = AF_INET;
        CHECK(inet_pton(AF_INET, "127.0.0.1", &at.sin_addr) == 1);
        socklen_t size = sizeof at;
        CHECK(bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 && listen(fd, 8) == 0);
        CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
        address = "127.0.0.1 " + std::to_string(ntohs(at.sin_port)) + "\n";
    }
    ~Listener() { close(fd); }
    int accept() const { return ::accept(fd, nullptr, nullptr); }
};

// Somebody between two ranks records their handshake: the secret isn't in it, and the record opens
// no other connection, not even to a rank with the same secret. A false listener gets no proof.
void recorded() {
    Greeting answer;
    Hello hello;
    Digest proof;
    {
        Job job({0, 1}, {1, 8, 1}, 1);
        auto all = job.meeting();
        const Listener between;
        const int there = dial(all.addresses[1]);
        all.addresses[1] = between.address;
        std::thread zero([&] { job.pump(0).connect(all); });
        std::thread one([&] { job.pump(1).connect(all); });
        const int here = between.accept();
        say(there, hello = hear<Hello>(here));
        say(here, answer = hear<Greeting>(there));
        say(there, proof = hear<Digest>(here));
        zero.join();
        one.join();
        const std::string_view secret = bytes_of(all.secret);
        for (const auto words : {bytes_of(hello), bytes_of(answer), bytes_of(proof)}) {
            for (std::size_t at = 0; at + 8 <= words.size(); ++at) {
                CHECK(secret.find(words.substr(at, 8)) == std::string_view::npos);
            }
        }
        close(here);
        close(there);
    }
    Job job({0, 1}, {1, 8, 1}, 1);
    auto all = job.meeting();
    std::thread one([&] { job.pump(1).connect(all); });
    const int again = dial(all.addresses[1]);
    say(again, hello);
    CHECK(hear<Greeting>(again).hello.nonce != answer.hello.nonce);
    say(again, proof);
    CHECK(is_shut(again));
    const Listener false_one;
    auto astray = all;
    astray.addresses[1] = false_one.address;
    std::thread zero([&] {
        const auto what = error_of([&] { job.pump(0).connect(astray); }, ECONNREFUSED);
        CHECK(what.find("rank 1") == 0);
    });
    const int here = false_one.accept();
    const auto asked = hear<Hello>(here);
    CHECK(asked.nonce != hello.nonce);
    say(here, answer);
    CHECK(is_shut(here));
    zero.join();
    const int right = dial(all.addresses[1]);
    shake_hands(right, all.secret);
    one.join();
    for (const int fd : {again, here, right}) close(fd);
}

// HMAC-SHA256 of RFC 4231 (case 2, whose key is padded here as there), and SHA-256 of FIPS 180-4.
void proofs() {
    const auto text = [](const Digest& digest) {
        std::string digits;
        char two[3];
        for (const auto byte : digest) {
            std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
            digits += two;
        }
        return digits;
    };
    CHECK(text(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(text(sha256({"a", "bc"})) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(text(sha256({"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"})) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(text(sha256({std::string(1000000, 'a')})) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    Secret key{};
    std::memcpy(key.data(), "Jefe", 4);
    CHECK(text(hmac(key, {"what do ya want ", "for nothing?"})) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
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
    std::thread peer([&] { shake_hands(fd, meeting.secret); });
    job.pump(1).connect(meeting);
    peer.join();
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

}  // namespace sley::network_test
