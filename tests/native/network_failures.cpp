// Jobs in which the network or a rank fails.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "network_job.hpp"

namespace sley::network_test {

// A process is killed while it sends messages.
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
            if (out.has_slot(4, 60000)) out.publish({out.where(out.take_slot(60000)), 60000, 1});
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

// A network namespace of this process, whose link can be cut.
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

// Waiting ranks notice that the network between them is cut, even without messages in flight.
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

// A rank that lives but receives nothing is not cut off, however much is in flight to it.
void busy() {
    const auto silence = std::chrono::milliseconds(200);
    Job job({0, 1}, {8, 4 << 20, 8}, 1, silence);
    job.connect();
    FifoSender& out = job.fabric(0).sender(1, 1);
    const auto stream = [] { return Stream(0, 1, 0, 4 << 20); };
    auto sent = stream(), received = stream();
    while (out.has_slot(8, 4 << 20)) {
        const auto slot = out.take_slot(4 << 20);
        sent.write(out.data(slot), 4 << 20);
        out.publish({out.where(slot), 4 << 20, 1});
        sent.next();
    }
    pump_for(job.fabric(0), 8 * silence);
    CHECK(!job.fabric(0).control().failed() && !job.fabric(0).is_settled());
    FifoReceiver& in = job.fabric(1).receiver(0, 1);
    for (int i = 0; i < 8; ++i) {
        pump_until(job.fabric(1), [&] { return job.fabric(0).progress(), in.has_message(); });
        CHECK(received.is_right(job.fabric(1).resolve(0, in.message().where, in.message().bytes), 4 << 20));
        received.next();
        in.release();
    }
}

}  // namespace sley::network_test
