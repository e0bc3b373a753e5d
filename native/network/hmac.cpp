#include "network/hmac.hpp"

#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>

namespace sley {
namespace {

constexpr std::size_t kBlock = 64;

// The first 32 bits after the point of the square roots and the cube roots of the first primes.
struct Constants {
    std::array<std::uint32_t, 8> start;
    std::array<std::uint32_t, 64> rounds;
};

std::uint32_t fraction(long double root) {
    return static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
}

Constants make_constants() {
    Constants made{};
    std::size_t found = 0;
    for (int n = 2; found < made.rounds.size(); ++n) {
        bool is_prime = true;
        for (int d = 2; d * d <= n; ++d) is_prime = is_prime && n % d != 0;
        if (!is_prime) continue;
        const long double prime = n;
        if (found < made.start.size()) made.start[found] = fraction(std::sqrt(prime));
        made.rounds[found++] = fraction(std::cbrt(prime));
    }
    return made;
}

const Constants& constants() {
    static const Constants made = make_constants();
    return made;
}

std::uint32_t rotated(std::uint32_t word, int by) { return word >> by | word << (32 - by); }

class Sha256 {
public:
    void add(std::string_view bytes) {
        for (const char c : bytes) {
            block_[size_++ % kBlock] = static_cast<std::uint8_t>(c);
            if (size_ % kBlock == 0) mix();
        }
    }

    Digest end() {
        const std::uint64_t bits = size_ * 8;
        add(std::string_view("\x80", 1));
        while (size_ % kBlock != kBlock - sizeof bits) add(std::string_view("\0", 1));
        for (int shift = 56; shift >= 0; shift -= 8) {
            const char c = static_cast<char>(bits >> shift & 0xFF);
            add({&c, 1});
        }
        Digest digest;
        for (std::size_t i = 0; i < digest.size(); ++i) {
            digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - i % 4 * 8) & 0xFF);
        }
        return digest;
    }

private:
    void mix() {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i) {
            for (std::size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | block_[4 * i + k];
        }
        for (std::size_t i = 16; i < 64; ++i) {
            const auto a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
                   (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
        }
        auto s = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const auto e = s[4], a = s[0];
            const auto one = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                             ((e & s[5]) ^ (~e & s[6])) + constants().rounds[i] + w[i];
            const auto two = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) +
                             ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            s = {one + two, a, s[1], s[2], s[3] + one, e, s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
    }

    std::array<std::uint32_t, 8> state_ = constants().start;
    std::array<std::uint8_t, kBlock> block_{};
    std::uint64_t size_ = 0;  // of the text so far
};

}  // namespace

Digest sha256(std::initializer_list<std::string_view> parts) {
    Sha256 text;
    for (const auto part : parts) text.add(part);
    return text.end();
}

Digest hmac(const Secret& secret, std::initializer_list<std::string_view> parts) {
    std::array<char, kBlock> inner{}, outer{};
    std::memcpy(inner.data(), secret.data(), secret.size());
    outer = inner;
    for (auto& c : inner) c = static_cast<char>(c ^ 0x36);
    for (auto& c : outer) c = static_cast<char>(c ^ 0x5c);
    Sha256 text;
    text.add({inner.data(), inner.size()});
    for (const auto part : parts) text.add(part);
    const Digest digest = text.end();
    return sha256({{outer.data(), outer.size()}, bytes_of(digest)});
}

Nonce make_nonce() {
    Nonce nonce;
    if (getentropy(nonce.data(), nonce.size()) != 0) {
        throw std::system_error(errno, std::generic_category(), "random numbers");
    }
    return nonce;
}

}  // namespace sley
