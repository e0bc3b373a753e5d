#include "nccl/errors.hpp"

#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// As NCCL names it: up to the first dot.
std::string host() {
    char name[256]{};
    gethostname(name, sizeof(name) - 1);
    return {name, std::strcspn(name, ".")};
}

// The file beside NCCL_DEBUG_FILE's, with ".sley" behind its name, because NCCL overwrites what others
// write into its own; itself if it is a pipe or a device. "%h" is the host, "%p" the process.
int open_log() {
    const char* pattern = std::getenv("NCCL_DEBUG_FILE");
    if (pattern == nullptr || *pattern == '\0') return STDERR_FILENO;
    std::string path;
    for (; *pattern != '\0'; ++pattern) {
        if (*pattern == '%' && pattern[1] == 'h') path += host();
        else if (*pattern == '%' && pattern[1] == 'p') path += std::to_string(getpid());
        else if (*pattern == '%' && pattern[1] == '%') path += '%';
        else { path += *pattern; continue; }
        ++pattern;
    }
    struct stat file {};
    if (stat(path.c_str(), &file) != 0 || S_ISREG(file.st_mode)) path += ".sley";
    const int made = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return made < 0 ? STDERR_FILENO : made;
}

// One line of a process's thread, in the form of NCCL's lines.
void write_line(int file, const char* level, const std::string& line) {
    const auto text = host() + ":" + std::to_string(getpid()) + ":" +
                      std::to_string(syscall(SYS_gettid)) + " sley " + level + " " + line + "\n";
    if (write(file, text.data(), text.size()) < 0) return;  // there is no other place to say it
}

// Without a lock, which a fork could leave locked: threads that come first may open it twice.
int log_file() {
    static std::atomic<int> file{-1};
    if (file < 0) file = open_log();
    return file;
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
    if (debugs({"WARN", "INFO", "TRACE"})) write_line(log_file(), "WARN", line);
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

void log(const std::string& line) { write_line(log_file(), "INFO", line); }

void warn(const std::string& line) { write_line(STDERR_FILENO, "WARN", line); }

}  // namespace sley::nccl
