// How a thread computes with floating-point numbers.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace sley {

// Rounds to nearest and keeps subnormal numbers, while it lives: a call in the caller's thread has
// the same bits as one in another thread or on another rank, whatever the caller has set (PyTorch's
// set_flush_denormal, fesetround).
class PlainFloatingPoint {
public:
    PlainFloatingPoint() { set(kPlain); }
    ~PlainFloatingPoint() { set(own_); }
    PlainFloatingPoint(const PlainFloatingPoint&) = delete;
    PlainFloatingPoint& operator=(const PlainFloatingPoint&) = delete;

private:
#if defined(__x86_64__)
    using Word = unsigned;
    // All exceptions are masked (Intel's manual, volume 1, 10.2.3: the value after a reset).
    static constexpr Word kPlain = 0x1f80;
    static Word get() { return _mm_getcsr(); }
    static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
    using Word = std::uint64_t;
    static constexpr Word kPlain = 0;
    static Word get() {
        Word word;
        __asm__ volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void set(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
    using Word = int;
    static constexpr Word kPlain = 0;
    static Word get() { return 0; }
    static void set(Word) {}
#endif

    const Word own_ = get();
};

}  // namespace sley
