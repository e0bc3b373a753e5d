// Proofs that one knows a secret, which don't reveal it: HMAC-SHA256 (RFC 2104, FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace sley {

constexpr std::size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;
using Digest = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 16>;  // a number that is used once

// Of the parts, one after another.
Digest sha256(std::initializer_list<std::string_view> parts);
Digest hmac(const Secret& secret, std::initializer_list<std::string_view> parts);

// From the system's generator. Throws std::system_error.
Nonce make_nonce();

// Compares in constant time.
inline bool is_same(const Digest& a, const Digest& b) {
    volatile std::byte difference{0};
    for (std::size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
    return difference == std::byte{0};
}

// The bytes of a value, as a part of what is proven.
template <class T>
std::string_view bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace sley
