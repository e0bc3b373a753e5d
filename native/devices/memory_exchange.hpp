// Memory for every rank of a communicator, which the devices of all processes reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "devices/device.hpp"
#include "devices/processes.hpp"

namespace sley {

class MemoryExchange {
public:
    // An allocation. own: the memory of this process's ranks. found: the addresses of all ranks'
    // memory on each device of this process. seen: for each rank, those on its device.
    struct Made {
        std::map<int, Resource> own;
        std::map<Device*, Processes::Numbers> found;
        std::vector<Processes::Numbers> seen;
    };

    // devices: of the ranks of this process. has_lines: whether kernels write lines of LL128.
    MemoryExchange(std::shared_ptr<Processes> processes, std::map<int, Device*> devices,
                   bool has_lines);

    Processes& processes() const { return *processes_; }
    const std::map<int, Device*>& devices() const { return devices_; }
    // Allocates sizes[r] bytes for each rank r. All processes call this together. Throws Refusal: K514
    // if a process has ended, R503 if the processes' sizes differ, K523 if lines don't arrive whole.
    Made allocate(const std::vector<std::size_t>& sizes);
    // Zeroed memory of the host that the devices of all processes can access. All processes call this
    // together.
    Resource allocate_host(std::size_t bytes);
    // Releases the memory of other processes.
    void detach() { attached_.clear(); }

private:
    void attach_others(const std::vector<std::size_t>& sizes, Made& made);

    std::shared_ptr<Processes> processes_;
    std::map<int, Device*> devices_;
    bool has_lines_;
    std::vector<Resource> attached_;
};

}  // namespace sley
