// What devices, and what is made for them, refuse.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace sley {

// A refusal. rule: sley's, by its code.
struct Refusal : std::runtime_error {
    Refusal(const char* rule, std::string expected, std::string found)
        : std::runtime_error(expected), rule(rule), expected(std::move(expected)),
          found(std::move(found)) {}

    const char* rule;
    std::string expected, found;
};

}  // namespace sley
