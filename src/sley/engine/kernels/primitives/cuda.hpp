// The platform layer for CUDA: a block's threads, memory accesses and their order, time. NVRTC
// compiles it without any header.
//
// Memory is ordered by inline PTX: `ld.acquire`, fences and relaxed accesses at the scope that
// contains all ranks (SLEY_SCOPE: gpu or sys). A poll is an acquire, so that the one that succeeds
// needs no second load. It empties the L1 cache, in which a waiting block has nothing to lose.
//
// A block's last warp publishes, all others are workers: they wait, and move data. So they begin the
// next execution while the last warp waits for its fence. A block of one warp does both.
#pragma once

#pragma nv_diag_suppress 177  // unused functions: a kernel uses only the primitives of its plan

#define SLEY_FUNCTION static __device__ __noinline__
#define SLEY_INLINE static __device__ __forceinline__
#define SLEY_METHOD __device__ __forceinline__
#define SLEY_SHARED static __shared__
#define SLEY_TABLE static __constant__ const
#define SLEY_LARGE_TABLE static __device__ const  // constant memory has 64 KiB
#define SLEY_UNROLL _Pragma("unroll")
#define SLEY_ROLLED _Pragma("unroll 1")  // around batches: more of them would need more registers
// One block may use all registers of a multiprocessor: to spill none matters more than to fit
// several blocks.
#define SLEY_KERNEL(name) SLEY_KERNEL_OF(name, Call)
#define SLEY_KERNEL_OF(name, Argument)                            \
    extern "C" __global__ void __launch_bounds__(SLEY_THREADS, 1) \
        name(const __grid_constant__ sley::layout::Argument call)

namespace sley {

using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int kWarp = 32;

SLEY_INLINE int thread() { return static_cast<int>(threadIdx.x); }
// Read where it is needed: a register for it would be missed while data move.
SLEY_INLINE int threads() {
    int number;
    asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(number));
    return number;
}
SLEY_INLINE int workers() { return max(threads() - kWarp, kWarp); }
SLEY_INLINE int block_index() { return static_cast<int>(blockIdx.x); }
SLEY_INLINE int blocks() { return static_cast<int>(gridDim.x); }
SLEY_INLINE void barrier() { __syncthreads(); }
SLEY_INLINE bool any_thread(bool flag) { return __syncthreads_or(flag) != 0; }
// The same among workers, with a barrier of their own.
SLEY_INLINE bool any_worker(bool flag) {
    int result;
    __syncwarp();
    asm volatile(
        "{ .reg .pred p, q;\n"
        "setp.ne.s32 p, %1, 0;\n"
        "barrier.cta.red.or.pred.aligned q, 1, %2, p;\n"
        "selp.s32 %0, 1, 0, q; }"
        : "=r"(result) : "r"(static_cast<int>(flag)), "r"(workers()) : "memory");
    return result != 0;
}
SLEY_INLINE void sync_warp() { __syncwarp(); }
SLEY_INLINE bool any_lane(bool flag) { return __any_sync(0xFFFFFFFFu, flag) != 0; }
SLEY_INLINE bool claim(u32* taken) { return atomicExch(taken, 1u) == 0; }
SLEY_INLINE void pause() {}
constexpr u32 kSpins = 4096;  // polls between reads of the clock

SLEY_INLINE u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

SLEY_INLINE u64 cycles() {
    u64 count;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(count) :: "memory");
    return count;
}

// Counters that other blocks write or read.
SLEY_INLINE u64 acquire(const u64* counter) {
    u64 value;
    asm volatile("ld.acquire." SLEY_SCOPE ".global.u64 %0, [%1];"
                 : "=l"(value) : "l"(counter) : "memory");
    return value;
}
// Orders what the block has written before its last barrier before what is published next.
SLEY_INLINE void fence() { asm volatile("fence.acq_rel." SLEY_SCOPE ";" ::: "memory"); }
// Orders accesses to a memory by its own address with those by the switch's address.
SLEY_INLINE void fence_aliases() { asm volatile("fence.proxy.alias;" ::: "memory"); }
SLEY_INLINE void publish(u64* counter, u64 value) {
    asm volatile("st.relaxed." SLEY_SCOPE ".global.u64 [%0], %1;"
                 :: "l"(counter), "l"(value) : "memory");
}

// Publishes that the block has read what others may now overwrite. It needs no fence: a thread that
// has passed a barrier has used the values that it loaded before, so they are in its registers.
SLEY_INLINE void publish_read(u64* counter, u64 value) { publish(counter, value); }

// Words for the host, always at system scope.
SLEY_INLINE u64 peek_host(const u64* word) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
SLEY_INLINE void publish_host(u64* word, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(word), "l"(value) : "memory");
}

SLEY_INLINE u64 load_word(const u64* at) {
    u64 value;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

// 16 bytes, accessed as global memory explicitly: for pointers that it loads from shared memory,
// the compiler would use generic addresses.
struct Vector {
    u32 word[4];
};
SLEY_INLINE Vector load_vector(const char* at) {
    Vector v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(at) : "memory");
    return v;
}
SLEY_INLINE void store_vector(char* at, Vector v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(at), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
}

// The two aligned vectors around one at any address, and the one that they make.
SLEY_INLINE void load_around(Vector* first, Vector* second, const char* at) {
    const char* const aligned = at - reinterpret_cast<u64>(at) % 16;
    *first = load_vector(aligned);
    *second = load_vector(aligned + 16);
}
SLEY_INLINE Vector joined(Vector first, Vector second, const char* at) {
    const u32 by = static_cast<u32>(reinterpret_cast<u64>(at)) % 16;
    u32 word[8];
    memcpy(word, &first, sizeof first);
    memcpy(word + 4, &second, sizeof second);
    SLEY_UNROLL
    for (int i = 0; i < 6; ++i) word[i] = by & 8 ? word[i + 2] : word[i];
    SLEY_UNROLL
    for (int i = 0; i < 5; ++i) word[i] = by & 4 ? word[i + 1] : word[i];
    Vector v;
    SLEY_UNROLL
    for (int i = 0; i < 4; ++i) v.word[i] = __funnelshift_r(word[i], word[i + 1], by % 4 * 8);
    return v;
}

#if SLEY_GROUPS
// 16 bytes of the memories of all GPUs of a team, behind one address: a switch stores to all of them,
// or loads what SLEY_SWITCH_OP makes of them, SLEY_SWITCH_BYTES at once.
SLEY_INLINE void store_switched(const char* switched, i64 at, Vector v) {
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(switched + at), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                    "r"(v.word[3])
                 : "memory");
}
#define SLEY_LOAD_SWITCHED(kind, result, by) \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." SLEY_SWITCH_OP " %0, [%1];" \
                 : kind(result) : "l"(switched + at + by) : "memory")
template <class Combine>
SLEY_INLINE Vector load_switched(const char* switched, i64 at, Combine) {
    Vector v;
#if SLEY_SWITCH_BYTES == 16
    asm volatile("multimem.ld_reduce.relaxed.sys.global." SLEY_SWITCH_OP " {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(switched + at) : "memory");
#elif SLEY_SWITCH_BYTES == 4
    SLEY_LOAD_SWITCHED("=r", v.word[0], 0);
    SLEY_LOAD_SWITCHED("=r", v.word[1], 4);
    SLEY_LOAD_SWITCHED("=r", v.word[2], 8);
    SLEY_LOAD_SWITCHED("=r", v.word[3], 12);
#elif SLEY_TYPE == 3 && SLEY_REDUCTION <= 5
    double pair[2];
    SLEY_LOAD_SWITCHED("=d", pair[0], 0);
    SLEY_LOAD_SWITCHED("=d", pair[1], 8);
    memcpy(&v, pair, sizeof v);
#else
    u64 pair[2];
    SLEY_LOAD_SWITCHED("=l", pair[0], 0);
    SLEY_LOAD_SWITCHED("=l", pair[1], 8);
    memcpy(&v, pair, sizeof v);
#endif
    return v;
}
#endif

// The words of flagged messages, two at a time. LL: each word carries its flag, and 8 bytes are
// written at once. LL128: a warp's store of a line of 128 bytes arrives as a whole.
struct Pair {
    u64 first, second;
};
SLEY_INLINE Pair load_pair(const u64* at) {
    Pair p;
    asm volatile("ld.relaxed." SLEY_SCOPE ".global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(p.first), "=l"(p.second) : "l"(at) : "memory");
    return p;
}
SLEY_INLINE void store_pair(u64* at, Pair p) {
    asm volatile("st.relaxed." SLEY_SCOPE ".global.v2.u64 [%0], {%1, %2};"
                 :: "l"(at), "l"(p.first), "l"(p.second) : "memory");
}

// A part of a line of LL128. Only the thread with the flag sees whether the line has arrived;
// `any_lane` tells the whole warp.
SLEY_INLINE bool load_of_line(const u64* line, int part, u64 flag, Pair* pair) {
    *pair = load_pair(line + 2 * part);
    return part != 7 || pair->second == flag;
}
SLEY_INLINE void store_of_line(u64* line, int part, Pair p) { store_pair(line + 2 * part, p); }

// The upper 64 bits of a product.
SLEY_INLINE u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }

// Products that no sum is fused with.
SLEY_INLINE float product(float a, float b) { return __fmul_rn(a, b); }
SLEY_INLINE double product(double a, double b) { return __dmul_rn(a, b); }

SLEY_INLINE float as_float(u32 bits) { return __uint_as_float(bits); }
SLEY_INLINE u32 as_bits(float value) { return __float_as_uint(value); }

struct Float16 {
    u16 bits;
    static __device__ __forceinline__ Float16 from_float(float value) {
        Float16 half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
        return half;
    }
    __device__ __forceinline__ float to_float() const {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

struct Bfloat16 {
    u16 bits;
    static __device__ __forceinline__ Bfloat16 from_float(float value) {
        Bfloat16 half;
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
#else
        const u32 w = as_bits(value);
        const u32 rounded = (w + 0x7FFFu + (w >> 16 & 1u)) >> 16;
        half.bits = static_cast<u16>(value != value ? w >> 16 | 0x40u : rounded);
#endif
        return half;
    }
    __device__ __forceinline__ float to_float() const {
        return as_float(static_cast<u32>(bits) << 16);
    }
};

}  // namespace sley
