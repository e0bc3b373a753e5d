// Reading another process' memory.
#include "fabric/attach.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <random>

namespace sley {
namespace {

bool can_read_byte(pid_t process, iovec there) {
    std::byte byte;
    const iovec here{&byte, 1};
    there.iov_len = 1;
    return process_vm_readv(process, &here, 1, &there, 1, 0) == 1;
}

}  // namespace

void announce(RankState& state) {
    std::random_device random;
    state.word.store(std::uint64_t{random()} << 32 | random(), std::memory_order_relaxed);
    state.word_at.store(reinterpret_cast<std::uint64_t>(&state.word), std::memory_order_relaxed);
    state.process.store(static_cast<std::uint64_t>(getpid()), std::memory_order_release);
}

// A process of that number in this process' namespace need not be the rank's: it is if the word
// that the rank has made up is where it says.
bool can_read(const RankState& peer) {
    if (peer.process.load(std::memory_order_acquire) == 0) return false;
    std::uint64_t found = 0;
    return read_memory(peer, peer.word_at.load(std::memory_order_relaxed),
                       reinterpret_cast<std::byte*>(&found), sizeof found) == ReadEnd::kDone &&
           found == peer.word.load(std::memory_order_relaxed);
}

ReadEnd read_memory(const RankState& peer, std::uint64_t address, std::byte* to,
                    std::size_t bytes) {
    const auto process = static_cast<pid_t>(peer.process.load(std::memory_order_relaxed));
    while (bytes > 0) {
        const iovec here{to, bytes};
        const iovec there{reinterpret_cast<void*>(address), bytes};
        const auto read = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (read < 0 && errno == ESRCH) return ReadEnd::kDied;
        if (read <= 0) return can_read_byte(process, there) ? ReadEnd::kNowhere : ReadEnd::kGone;
        to += read;
        address += static_cast<std::uint64_t>(read);
        bytes -= static_cast<std::size_t>(read);
    }
    return ReadEnd::kDone;
}

}  // namespace sley
