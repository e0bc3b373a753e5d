#include "devices/arguments.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <tuple>

#include "engine/reduce.hpp"

namespace sley {
namespace {

static_assert(std::size(kElementTypes) == kDataTypes + 1);

template <class Is>
const ElementType* find(const Is& is) {
    const auto* found = std::find_if(std::begin(kElementTypes), std::end(kElementTypes), is);
    return found == std::end(kElementTypes) ? nullptr : found;
}

void check_array(const CallArray& array, std::string_view type) {
    const std::uintptr_t item = array.view.type->bits / 8, address = array.view.address;
    if (address % item != 0) {
        char found[32];
        std::snprintf(found, sizeof found, "%#zx", static_cast<std::size_t>(address));
        throw Refusal("K519",
                      "an address that is a multiple of " + std::to_string(item) + ", the size of a " +
                          std::string(type),
                      found, std::string(array.what),
                      "Pass an array as its library allocated it, or a view that begins at an "
                      "element of it.");
    }
    if (array.is_written && !array.view.writable) {
        throw Refusal("K519", "an array that may be written", "a read-only one",
                      std::string(array.what),
                      "Pass a writable output, or a copy of the array.");
    }
}

}  // namespace

const ElementType* element_type(int code, int bits) {
    return find([=](const ElementType& t) { return t.code == code && t.bits == bits; });
}

const ElementType* element_type(std::string_view name) {
    return find([=](const ElementType& t) { return t.name == name; });
}

std::string element_types() {
    std::string names;
    for (int i = 0; i < kDataTypes; ++i) {
        names.append(i == 0 ? "" : ", ").append(kElementTypes[i].name);
    }
    return names;
}

void check_arrays(const std::vector<CallArray>& arrays, std::string_view type) {
    // Address, end, whether the call writes it, and name: in the order of addresses, an array shares
    // memory with one before it, if with any, and then with the one of these that ends last.
    using Row = std::tuple<std::uintptr_t, std::uintptr_t, bool, std::string_view>;
    std::vector<Row> rows;
    for (const auto& array : arrays) {
        check_array(array, type);
        const auto [address, size] = std::pair(array.view.address, array.view.bytes());
        rows.emplace_back(address, address + static_cast<std::size_t>(size), array.is_written,
                          array.what);
    }
    std::sort(rows.begin(), rows.end());
    Row furthest, written;  // those with the last end: of all, and of those that the call writes
    const auto extend = [](Row& last, const Row& row) {
        if (std::get<1>(row) > std::get<1>(last)) last = row;
    };
    for (const auto& row : rows) {
        const auto& [address, end, is_written, what] = row;
        const Row& other = is_written ? furthest : written;
        if (address < std::get<1>(other)) {
            throw Refusal("R503", "arrays apart from those that the call writes",
                          "memory that it shares with the " + std::string(std::get<3>(other)),
                          std::string(what));
        }
        extend(furthest, row);
        if (is_written) extend(written, row);
    }
}

}  // namespace sley
