// What devices, and what is made for them, refuse.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace sley {

// Thrown by whoever waits if `is_interrupted` says so.
struct Interrupted {};

// rule: sley's, by its code. place: the array, if it is one. remedy: empty for the rule's own.
struct Refusal : std::runtime_error {
    Refusal(std::string rule, std::string expected, std::string found, std::string place = {},
            std::string remedy = {})
        : std::runtime_error(rule + ": expected " + expected + ", found " + found),
          rule(std::move(rule)), expected(std::move(expected)), found(std::move(found)),
          place(std::move(place)), remedy(std::move(remedy)) {}

    std::string rule;
    std::string expected, found, place, remedy;
};

}  // namespace sley
