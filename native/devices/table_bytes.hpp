// Tables as bytes: a head that names the layout, a digest, and numbers and rows one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "devices/refusal.hpp"

namespace sley {

inline Refusal damaged(std::string expected, std::string found = "others") {
    return {"F425", std::move(expected), std::move(found)};
}

inline void expect_table(bool holds, const char* what) {
    if (!holds) throw damaged(what);
}

// FNV-1a, which sees damage but no intent.
inline std::uint64_t digest_of(std::string_view bytes) {
    std::uint64_t digest = 0xCBF29CE484222325;
    for (const char byte : bytes) {
        digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
    }
    return digest;
}

template <class T>
void put(std::string& bytes, const T* values, std::size_t count) {
    bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// Takes bytes from the begin of others.
template <class T>
void take(std::string_view& bytes, T* values, std::size_t count) {
    if (count > bytes.size() / sizeof(T)) throw damaged("whole tables", "a cut one");
    if (count != 0) std::memcpy(static_cast<void*>(values), bytes.data(), count * sizeof(T));
    bytes.remove_prefix(count * sizeof(T));
}

// A number takes 8 bytes, whatever its type.
template <class Number>
void take_number(std::string_view& bytes, Number& value) {
    std::int64_t read = 0;
    take(bytes, &read, 1);
    value = static_cast<Number>(read);
    if (static_cast<std::int64_t>(value) != read) throw damaged("numbers in their range");
}

// The file of a body.
inline std::string sealed(std::string_view head, const std::string& body) {
    std::string bytes(head);
    const std::uint64_t digest = digest_of(body);
    put(bytes, &digest, 1);
    return bytes + body;
}

// Its digest; `bytes` become the body. Throws Refusal (F425).
inline std::uint64_t unseal(std::string_view head, std::string_view& bytes) {
    if (bytes.substr(0, head.size()) != head) {
        throw damaged(std::string(head.substr(0, head.size() - 1)), "another begin");
    }
    bytes.remove_prefix(head.size());
    std::uint64_t digest = 0;
    take(bytes, &digest, 1);
    if (digest != digest_of(bytes)) throw damaged("bytes with their digest");
    return digest;
}

}  // namespace sley
