// The 8-bit floating-point types of Open Compute (OCP 8-bit Floating Point Specification, 1.0):
// Float8<3, 0x7E> is E4M3, Float8<2, 0x7B> E5M2, by the bits of their fractions and their largest
// finite numbers. They convert to the bits of a float and back; Word is an integer of 32 bits or a
// vector of them, for which there are `as_float` and `as_bits`.
//
// Rounding is to nearest even, subnormals are kept. What is too large, an infinity of E5M2 too,
// becomes the largest finite number, and NaN becomes 0x7F, as in cvt.rn.satfinite of PTX.
//
// There is neither a guard nor a namespace: the CPU runtime includes this for each set of vector
// instructions.

template <int kFraction, unsigned kLargest>
struct Float8 {
    unsigned char bits;

    static constexpr unsigned kShift = 23 - kFraction;
    // A float's exponent less the type's, of which the bias is 2^(6 - kFraction) - 1.
    static constexpr unsigned kRebias = (128u - (1u << (6 - kFraction))) << 23;
    // The float whose last bit is worth the type's smallest number. So the sum of the two, a normal
    // number even for a subnormal one, counts such numbers in its last bits.
    static constexpr unsigned kUnit = kRebias + ((24u - kFraction) << 23);

    template <class Word>
    SLEY_INLINE Word widened(Word code) {
        const Word magnitude = code & 0x7Fu;
        const Word special = magnitude > kLargest ? Word{} + kRebias : Word{};
        const Word normal = (magnitude << kShift) + kRebias + special;
        const Word subnormal = as_bits(as_float(magnitude + kUnit) - as_float(Word{} + kUnit));
        return (magnitude < (1u << kFraction) ? subnormal : normal) | ((code & 0x80u) << 24);
    }

    template <class Word>
    SLEY_INLINE Word narrowed(Word value) {
        const Word magnitude = value & 0x7FFFFFFFu, largest = Word{} + ((kLargest << kShift) + kRebias);
        const Word finite = magnitude < largest ? magnitude : largest;
        const Word below_half = ((finite >> kShift) & 1u) + ((1u << (kShift - 1)) - 1u);
        const Word normal = ((finite + below_half) >> kShift) - (kRebias >> kShift);
        const Word subnormal = as_bits(as_float(finite) + as_float(Word{} + kUnit)) - kUnit;
        const Word code = finite < kRebias + (1u << 23) ? subnormal : normal;
        return magnitude > 0x7F800000u ? Word{} + 0x7Fu : code | ((value >> 24) & 0x80u);
    }
};
