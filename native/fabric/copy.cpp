// Copies that bypass the caches.
#include "fabric/copy.hpp"

#include <cstdint>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sley {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLine = 64;

// `to` is aligned to a line. Both halves of a line are stored together, so that it leaves the
// write-combining buffer whole.
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

}  // namespace

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

// Not from sysconf, which adds up the caches of all sockets on some machines.
std::int64_t last_level_cache_bytes() {
    static const std::int64_t bytes = [] {
        for (const char* level : {"index3", "index2"}) {
            std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/") + level + "/size");
            std::int64_t size = 0;
            char unit = 'K';
            if (file >> size >> unit && size > 0) return size << (unit == 'M' ? 20 : 10);
        }
        constexpr std::int64_t kUsual = 32 << 20;
        return kUsual;
    }();
    return bytes;
}

}  // namespace sley
