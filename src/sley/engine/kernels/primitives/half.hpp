// The two 16-bit floating-point types, as bits that convert to float and back.
//
// Rounding is to nearest even. The conversions have no branches, so that the compiler can vectorise
// loops over them. NaN stays NaN; overflow gives infinity; subnormals are kept.
#pragma once

#include <cstdint>
#include <cstring>

namespace sley {

inline float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline std::uint32_t as_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct Bfloat16 {
    std::uint16_t bits;

    float to_float() const { return as_float(static_cast<std::uint32_t>(bits) << 16); }

    static Bfloat16 from_float(float value) {
        const std::uint32_t w = as_bits(value);
        const std::uint32_t rounded = (w + 0x7FFFu + ((w >> 16) & 1u)) >> 16;
        const std::uint32_t quiet = (w >> 16) | 0x40u;  // rounding could turn a NaN into infinity
        return {static_cast<std::uint16_t>((w & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
    }
};

struct Float16 {
    std::uint16_t bits;

    // Normal numbers: move the fields and let a multiplication rebias the exponent (it also keeps
    // infinity and NaN). Subnormals: put the fraction below 0.5 and subtract it.
    float to_float() const {
        const std::uint32_t w = static_cast<std::uint32_t>(bits) << 16;
        const std::uint32_t sign = w & 0x80000000u;
        const std::uint32_t twice = w + w;
        const float normal = as_float((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
        const float subnormal = as_float((twice >> 17) | (126u << 23)) - 0.5f;
        return as_float(sign | as_bits(twice < (1u << 27) ? subnormal : normal));
    }

    // Adding a power of two that is 2^13 times the value's last kept bit makes the FPU round;
    // scaling up and down before it turns values that are too large into infinity.
    static Float16 from_float(float value) {
        const std::uint32_t w = as_bits(value);
        const std::uint32_t twice = w + w;
        std::uint32_t bias = twice & 0xFF000000u;
        bias = bias < 0x71000000u ? 0x71000000u : bias;
        const float scaled = (as_float(w & 0x7FFFFFFFu) * 0x1.0p+112f) * 0x1.0p-110f;
        const std::uint32_t r = as_bits(as_float((bias >> 1) + 0x07800000u) + scaled);
        const std::uint32_t magnitude = ((r >> 13) & 0x7C00u) + (r & 0x0FFFu);
        const std::uint32_t sign = (w >> 16) & 0x8000u;
        return {static_cast<std::uint16_t>(sign | (twice > 0xFF000000u ? 0x7E00u : magnitude))};
    }
};

}  // namespace sley
