#include "nccl/settings.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "nccl/errors.hpp"
#include "nccl/real.hpp"

#ifndef SLEY_VERSION
#define SLEY_VERSION ""  // of programs that tests compile
#endif

namespace sley::nccl {
namespace {

// "AllReduce" and "all_reduce" alike.
std::string letters_of(const std::string& name) {
    std::string letters;
    for (const char one : name) {
        if (std::isalpha(static_cast<unsigned char>(one))) {
            letters += static_cast<char>(std::tolower(static_cast<unsigned char>(one)));
        }
    }
    return letters;
}

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? "" : text;
}

// Seconds, at most a year, of which no unit overflows; without a number, or one that isn't above 0, as if
// it were unset.
double seconds(const char* name, double otherwise) {
    const auto found = std::strtod(variable(name).c_str(), nullptr);
    return found > 0 ? std::min(found, 365 * 86400.0) : otherwise;
}

}  // namespace

bool wants_same_bits() {
    auto word = variable("SLEY_SAME_BITS");
    for (auto& letter : word) {
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
    const auto nos = {"", "0", "no", "false", "off"};
    return std::find(nos.begin(), nos.end(), word) == nos.end();
}

Settings Settings::from_environment() {
    Settings made;
    made.which = variable("SLEY_NCCL");
    made.rank.tables = variable("SLEY_NCCL_TABLES");
    made.rank.kernels = variable("SLEY_NCCL_KERNELS");
    made.rank.version = SLEY_VERSION;
    made.rank.timeout_s = seconds("SLEY_TIMEOUT_S", made.rank.timeout_s);
    made.rank.same_bits = wants_same_bits();
    made.wait = std::chrono::milliseconds(
        static_cast<std::int64_t>(1000 * seconds("SLEY_NCCL_WAIT_S", 60)));
    if (made.rank.tables.empty() || made.rank.kernels.empty()) {
        made.lacks = "without SLEY_NCCL_TABLES and SLEY_NCCL_KERNELS of `sley exec`";
    }
    if (made.is_off()) made.lacks = "SLEY_NCCL=off";
    for (const char* word : {"", "off", "only", "eager"}) {
        if (made.which == word) return made;
    }
    std::istringstream names(made.which);
    for (std::string name; std::getline(names, name, ',');) {
        const auto letters = letters_of(name);
        const auto* end = std::end(kKinds);
        const auto* found = std::find_if(std::begin(kKinds), end, [&](const auto& one) {
            return letters == letters_of(one.function) || letters == letters_of(one.kind);
        });
        if (found == end) {
            made.lacks = "SLEY_NCCL names '" + name + "', which sley doesn't run";
            static std::atomic<bool> is_told{false};
            if (!is_told.exchange(true)) {
                warn("R514: expected SLEY_NCCL as off, only, eager, or functions like "
                     "AllReduce,AllGather, found SLEY_NCCL=" + made.which + ". NCCL runs all calls.");
            }
        } else {
            made.kinds.insert(found->kind);
        }
    }
    return made;
}

bool Settings::is_alone() const {
    return is_only() || (lacks.empty() && real().path.empty());
}

bool Settings::runs(const std::string& kind) const {
    return kinds.empty() || kinds.count(kind) > 0;
}

}  // namespace sley::nccl
