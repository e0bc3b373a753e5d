#include "devices/kernel_files.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "devices/refusal.hpp"
#include "network/hmac.hpp"

namespace sley {
namespace {

constexpr const char* kKernels = "kernels of this version of sley";
constexpr const char* kRemedy =
    "Install the package sley-kernels of sley's version, again if it is installed.";

std::string hexadecimal(const Digest& digest) {
    std::string digits;
    for (const auto byte : digest) {
        for (const int shift : {4, 0}) {
            digits += "0123456789abcdef"[std::to_integer<int>(byte) >> shift & 15];
        }
    }
    return digits;
}

}  // namespace

std::string bytes_of_file(const std::string& path, const std::string& what,
                          const std::string& remedy) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (file.is_open() && !file.bad()) return bytes;
    throw Refusal("N653", what, path + ": " + std::strerror(errno), {}, remedy);
}

KernelFolder::KernelFolder(const std::string& path)
    : path_(path), digests_(bytes_of_file(path + "/digests.toml", kKernels, kRemedy)) {}

LoadedKernels KernelFolder::load(const CudaDevice& device, const std::string& name, unsigned threads,
                                 const char* run, const char* divide) const {
    using Key = std::tuple<int, std::string, unsigned>;
    static auto& lock = *new std::mutex;  // threads may still come while the process ends
    static auto& every = *new std::map<Key, LoadedKernels>;
    static auto& right = *new std::set<std::string>;  // paths: a process's devices read the same
    const auto path = path_ + "/" + name;
    const Key key{device.ordinal(), path, threads};
    const std::lock_guard<std::mutex> held(lock);
    const auto known = every.find(key);
    if (known != every.end()) return known->second;
    const auto code = bytes_of_file(path, kKernels, kRemedy);
    if (right.count(path) == 0 &&
        digests_.find('"' + name + "\" = \"" + hexadecimal(sha256({code})) + '"') ==
            std::string::npos) {
        throw Refusal("N653", kKernels, path + ": another content than digests.toml says", {}, kRemedy);
    }
    right.insert(path);
    const auto module = device.load(code.c_str());
    const auto found = device.function(module, run);
    const LoadedKernels made{found, divide == nullptr ? 0 : device.function(module, divide),
                             device.blocks_at_once(found, static_cast<int>(threads))};
    return every[key] = made;
}

}  // namespace sley
