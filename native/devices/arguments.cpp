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

void check_arrays(const std::vector<CallArray>& arrays, const std::string& type) {
    // Address, end, whether the call writes it, and name.
    using Row = std::tuple<std::uintptr_t, std::uintptr_t, bool, std::string_view>;
    std::vector<Row> rows;
    for (const auto& [what, blocks, is_written, view] : arrays) {
        if (!view || view->elements == 0) continue;
        const std::uintptr_t item = view->type->bits / 8;
        if (view->address % item != 0) {
            char found[32];
            std::snprintf(found, sizeof found, "%#jx", static_cast<std::uintmax_t>(view->address));
            throw Refusal("K519",
                          "an address that is a multiple of " + std::to_string(item) +
                              ", the size of a " + type,
                          found, what,
                          "Pass an array as its library allocated it, or a view that begins at an "
                          "element of it.");
        }
        if (is_written && !view->writable) {
            throw Refusal("K519", "an array that may be written", "a read-only one", what,
                          "Pass a writable output, or a copy of the array.");
        }
        const auto end = view->address + static_cast<std::uintptr_t>(view->bytes());
        rows.emplace_back(view->address, end, is_written, what);
    }
    // In the order of addresses, an array shares memory with one before it, if with any, and then
    // with the one of these that ends last.
    std::sort(rows.begin(), rows.end());
    Row furthest, written;  // those that end last: of all, and of those that the call writes
    for (const auto& row : rows) {
        const auto& [address, end, is_written, what] = row;
        const auto& [first, last, other_is_written, other] = is_written ? furthest : written;
        if (address < last) {
            throw Refusal("R503", "arrays apart from those that the call writes",
                          "memory that it shares with the " + std::string(other), std::string(what));
        }
        if (end > std::get<1>(furthest)) furthest = row;
        if (is_written && end > std::get<1>(written)) written = row;
    }
}

}  // namespace sley
