// What a call from Python runs on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/calls.hpp"

namespace sley {

// The engine, and the record, of a call that other ranks may make with varying counts.
using Varying = std::optional<std::tuple<std::shared_ptr<Engine>, std::uint64_t>>;

inline Runner runner_of(std::shared_ptr<Engine> engine, const Varying& varying) {
    return {std::move(engine), nullptr, varying ? std::get<0>(*varying) : nullptr};
}
inline Runner runner_of(std::shared_ptr<Choice> choice, const Varying& varying) {
    return {nullptr, std::move(choice), varying ? std::get<0>(*varying) : nullptr};
}

}  // namespace sley
