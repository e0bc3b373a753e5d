#include "fabric/copy.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <random>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sley {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;

// `to` is aligned to a line. Both halves of a line are stored together, so that the write-combining
// buffer flushes it as a whole.
__attribute__((target("avx"))) void stream_lines(std::byte* to, const std::byte* from,
                                                 std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLine) {
        const auto* source = reinterpret_cast<const __m256i*>(from + i);
        auto* line = reinterpret_cast<__m256i*>(to + i);
        const __m256i low = _mm256_loadu_si256(source);
        const __m256i high = _mm256_loadu_si256(source + 1);
        _mm256_stream_si256(line, low);
        _mm256_stream_si256(line + 1, high);
    }
}

#endif

// Not those that this process may use: ranks that each have cores of their own share a cache.
std::int64_t cores_of_machine() {
    return std::max<std::int64_t>(sysconf(_SC_NPROCESSORS_ONLN), 1);
}

bool can_read_byte(pid_t process, iovec there) {
    std::byte byte;
    const iovec here{&byte, 1};
    there.iov_len = 1;
    return process_vm_readv(process, &here, 1, &there, 1, 0) == 1;
}

}  // namespace

#if defined(__x86_64__)

void stream_bytes(std::byte* to, const std::byte* from, std::size_t n) {
    static const bool has_avx = __builtin_cpu_supports("avx");
    const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
    if (!has_avx || n < head + kLine) return copy_bytes(to, from, n);
    const std::size_t lines = (n - head) / kLine * kLine;
    copy_bytes(to, from, head);
    stream_lines(to + head, from + head, lines);
    copy_bytes(to + head + lines, from + head + lines, n - head - lines);
    _mm_sfence();  // a release store alone does not order stores that bypass the caches
}

#else

void stream_bytes(std::byte* to, const std::byte* from, std::size_t n) { copy_bytes(to, from, n); }

#endif

// Not by sysconf, which adds up the caches of all sockets on some machines. A virtual machine of few
// cores is shown the whole cache of its host, whose other cores use it too (two cores and 300 MB): so
// no more counts than the processors with the largest caches have for each core.
std::int64_t last_level_cache_bytes() {
    static const std::int64_t bytes = [] {
        constexpr std::int64_t kOfCore = 16 << 20, kUsual = 32 << 20;
        for (const char* level : {"index3", "index2"}) {
            std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/") + level + "/size");
            std::int64_t size = 0;
            char unit = 'K';
            if (!(file >> size >> unit) || size <= 0) continue;
            return std::min(size << (unit == 'M' ? 20 : 10), kOfCore * cores_of_machine());
        }
        return kUsual;
    }();
    return bytes;
}

void announce(RankState& state) {
    std::random_device random;
    state.word.store(std::uint64_t{random()} << 32 | random(), std::memory_order_relaxed);
    state.word_at.store(reinterpret_cast<std::uint64_t>(&state.word), std::memory_order_relaxed);
    state.process.store(static_cast<std::uint64_t>(getpid()), std::memory_order_release);
}

// The process with that number in this process' namespace may be another one: it is the rank's if
// the rank's random word is at the announced address.
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
