// Identities of processes, as sley.communicator.rendezvous.hosts has them in Python.
#pragma once

#include <string>

namespace sley {

// Others can tell from it whether they share a host with this process, and whether it lives.
struct ProcessIdentity {
    std::string host;       // equal for processes of one kernel, network namespace and SLEY_HOST_ID
    std::string machine;    // the running kernel: its boot id
    std::string host_name;  // for messages
    std::string pids;       // the namespace of process ids
    long pid = 0;
    long long started = 0;  // in the kernel's ticks since boot; 0: unknown

    static ProcessIdentity here();
    bool operator==(const ProcessIdentity& other) const {
        return machine == other.machine && pids == other.pids && pid == other.pid &&
               started == other.started;
    }
    // Whether it has ended. False for one on another machine or in another namespace of process ids,
    // where this process can't tell.
    bool is_gone() const;
    // For messages: "process 12 on host".
    std::string name() const;
};

}  // namespace sley
