// The arrays of calls on devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "devices/plan_tables.hpp"

namespace sley {

// A type of arrays' elements. code: dlpack.h's kind of types.
struct ElementType {
    std::string_view name;
    std::uint8_t code, bits;
};

// The engine's, in the order of its numbers (engine/reduce.hpp); then what are only the bits of one.
inline constexpr ElementType kElementTypes[] = {
    {"float16", 2, 16}, {"bfloat16", 4, 16}, {"float32", 2, 32}, {"float64", 2, 64},
    {"int8", 0, 8}, {"int16", 0, 16}, {"int32", 0, 32}, {"int64", 0, 64},
    {"uint8", 1, 8}, {"uint32", 1, 32}, {"uint64", 1, 64},
    {"float8_e4m3fn", 10, 8}, {"float8_e5m2", 12, 8}, {"uint16", 1, 16}};

// Null for a type that the table lacks.
const ElementType* element_type(int code, int bits);
const ElementType* element_type(std::string_view name);

// The names of the engine's types, for messages.
std::string element_types();

// A caller's array, whose elements lie side by side. writable: whether kernels may write it.
struct ArrayView {
    std::uintptr_t address = 0;
    std::int64_t elements = 0;
    const ElementType* type = nullptr;
    bool writable = false;

    std::int64_t bytes() const { return elements * (type->bits / 8); }
};

// An array of a call, if there is one. what: its name in messages. blocks: the number of the
// collective's blocks in it. is_written: whether the call writes it.
struct CallArray {
    std::string what;
    std::int64_t blocks;
    bool is_written;
    std::optional<ArrayView> view;
};

// Throws a Refusal for an array whose address isn't a multiple of its elements' size, for a read-only
// array that the call writes, and for one that it writes which shares memory with another; arrays
// that it only reads may overlap. type: the name of the elements' type.
void check_arrays(const std::vector<CallArray>& arrays, const std::string& type);

}  // namespace sley
