#include "devices/kernel_files.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>

#include "devices/refusal.hpp"

namespace sley {

std::string bytes_of_file(const std::string& path, const std::string& what,
                          const std::string& remedy) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (file.is_open() && !file.bad()) return bytes;
    throw Refusal("N653", what, path + ": " + std::strerror(errno), {}, remedy);
}

LoadedKernels load_kernels(const CudaDevice& device, const std::string& path, unsigned threads,
                           const char* run, const char* divide) {
    using Key = std::tuple<int, std::string, unsigned>;
    static auto& lock = *new std::mutex;  // threads may still come while the process ends
    static auto& every = *new std::map<Key, LoadedKernels>;
    const Key key{device.ordinal(), path, threads};
    const std::lock_guard<std::mutex> held(lock);
    const auto known = every.find(key);
    if (known != every.end()) return known->second;
    const auto code = bytes_of_file(path, "kernels of this version of sley",
                                    "Install the package sley-kernels of sley's version.");
    const auto module = device.load(code.c_str());
    const auto found = device.function(module, run);
    const LoadedKernels made{found, divide == nullptr ? 0 : device.function(module, divide),
                             device.blocks_at_once(found, static_cast<int>(threads))};
    return every[key] = made;
}

}  // namespace sley
