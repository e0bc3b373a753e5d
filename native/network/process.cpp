#include "network/process.hpp"

#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace sley {
namespace {

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string this_host_name() {
    char name[256] = {};
    return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// Without a boot id, as in some sandboxes, one kernel is assumed for each host name.
std::string boot_id() {
    const auto text = text_of("/proc/sys/kernel/random/boot_id");
    return text.empty() ? this_host_name() : text.substr(0, text.find('\n'));
}

// Such as "net:[4026531833]".
std::string name_space(const std::string& kind) {
    char name[PATH_MAX];
    const auto size = readlink(("/proc/self/ns/" + kind).c_str(), name, sizeof name);
    return size > 0 ? std::string(name, static_cast<std::size_t>(size)) : "";
}

struct ProcessStat {
    char state = 0;
    long long started = 0;
};

// Fields 3 and 22 of proc_pid_stat(5). The name before them may contain blanks and brackets.
ProcessStat stat_of(long pid) {
    const auto text = text_of("/proc/" + std::to_string(pid) + "/stat");
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    ProcessStat stat;
    fields >> stat.state;
    std::string skipped;
    for (int field = 4; field < 22; ++field) fields >> skipped;
    fields >> stat.started;
    return stat;
}

}  // namespace

ProcessIdentity ProcessIdentity::here() {
    ProcessIdentity here;
    here.machine = boot_id();
    here.host = here.machine;
    const char* divided = std::getenv("SLEY_HOST_ID");
    for (const auto& part : {name_space("net"), std::string(divided ? divided : "")}) {
        if (!part.empty()) here.host += "/" + part;
    }
    here.host_name = this_host_name();
    here.pids = name_space("pid");
    here.pid = getpid();
    here.started = stat_of(here.pid).started;
    return here;
}

bool ProcessIdentity::is_gone() const {
    if (pids.empty() || machine != boot_id() || pids != name_space("pid")) return false;
    if (kill(static_cast<pid_t>(pid), 0) != 0) return errno == ESRCH;
    const auto stat = stat_of(pid);
    if (stat.state == 0) return false;  // not readable
    return stat.state == 'Z' || stat.state == 'X' || (started != 0 && stat.started != started);
}

std::string ProcessIdentity::name() const {
    return "process " + std::to_string(pid) + " on " + host_name;
}

}  // namespace sley
