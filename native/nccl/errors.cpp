#include "nccl/errors.hpp"

#include <strings.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>

#include "nccl/forks.hpp"

namespace sley::nccl {
namespace {

struct Last {
    std::mutex mutex;
    char line[1024];  // as NCCL's own
    std::atomic<bool> is_own{false};
};
OfProcess<Last> last;

bool debugs(std::initializer_list<const char*> levels) {
    const char* level = std::getenv("NCCL_DEBUG");
    if (level == nullptr) return false;
    for (const char* one : levels) {
        if (strcasecmp(level, one) == 0) return true;
    }
    return false;
}

}  // namespace

Result refuse(Result result, const char* code, const std::string& expected,
              const std::string& found, const std::string& remedy) {
    const std::string line = std::string(code) + ": expected " + expected + ", found " + found +
                             ". " + remedy;
    {
        const std::lock_guard lock(last->mutex);
        std::snprintf(last->line, sizeof last->line, "%s", line.c_str());
        last->is_own = true;
    }
    if (debugs({"WARN", "INFO", "TRACE"})) std::fprintf(stderr, "sley WARN %s\n", line.c_str());
    return result;
}

std::string line_of(const Refusal& why) {
    return why.rule + ": expected " + why.expected + ", found " + why.found;
}

Result refuse(Result result, const Refusal& why) {
    return refuse(result, why.rule.c_str(), why.expected, why.found,
                  why.remedy.empty() ? "sley's documentation of " + why.rule + " says what to do."
                                     : why.remedy);
}

void heard(Result result) {
    if (is_error(result)) last->is_own = false;
}

const char* own_error() {
    if (!last->is_own) return nullptr;
    thread_local char copy[sizeof last->line];
    const std::lock_guard lock(last->mutex);
    std::memcpy(copy, last->line, sizeof copy);
    return copy;
}

const char* name_of(Result result) {
    constexpr const char* kNames[] = {
        "no error",      "CUDA error",   "system error", "internal error", "invalid argument",
        "invalid usage", "remote error", "in progress",  "time-out",
    };
    const auto number = static_cast<unsigned>(result);
    return number < sizeof(kNames) / sizeof(*kNames) ? kNames[number] : "unknown result";
}

bool is_logging() { return debugs({"INFO", "TRACE"}); }

void log(const std::string& line) { std::fprintf(stderr, "sley INFO %s\n", line.c_str()); }

}  // namespace sley::nccl
