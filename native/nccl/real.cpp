// Finding and opening the real NCCL.
#include "nccl/real.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl/errors.hpp"
#include "nccl/forks.hpp"
#include "nccl/settings.hpp"

namespace sley::nccl {
namespace detail {
std::atomic<const Real*> opened{nullptr};
}
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr const char* kVariable = "SLEY_NCCL_LIBRARY";

struct Candidate {
    std::string path, origin;
};
using Candidates = std::vector<Candidate>;

std::string own_path() {
    Dl_info info{};
    dladdr(&detail::opened, &info);
    return info.dli_fname != nullptr ? info.dli_fname : "";
}

// The loaded objects that are linked with NCCL, by name; "" is the program.
int add_caller(dl_phdr_info* object, std::size_t, void* names) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const auto* first = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr +
                                                               object->dlpi_phdr[i].p_vaddr);
        ElfW(Addr) strings = 0;
        for (auto* entry = first; entry->d_tag != DT_NULL; ++entry) {
            if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
        }
        // The loader has made it an address, except in objects that can't be written to (the vDSO).
        if (strings < object->dlpi_addr) strings += object->dlpi_addr;
        for (auto* entry = first; entry->d_tag != DT_NULL; ++entry) {
            if (entry->d_tag != DT_NEEDED) continue;
            const auto* needed = reinterpret_cast<const char*>(strings + entry->d_un.d_val);
            if (std::strcmp(needed, kFile) != 0) continue;
            static_cast<std::vector<std::string>*>(names)->push_back(object->dlpi_name);
            break;
        }
    }
    return 0;
}

// Where the loader would look for NCCL for an object: its RPATH first. PyTorch's leads to the NCCL
// that it was built with.
void add_search_path(const std::string& name, Candidates& found) {
    void* object = dlopen(name.empty() ? nullptr : name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (object == nullptr) return;
    Dl_serinfo size{};
    if (dlinfo(object, RTLD_DI_SERINFOSIZE, &size) == 0) {
        std::vector<char> memory(size.dls_size);
        auto* info = reinterpret_cast<Dl_serinfo*>(memory.data());
        dlinfo(object, RTLD_DI_SERINFOSIZE, info);
        if (dlinfo(object, RTLD_DI_SERINFO, info) == 0) {
            for (unsigned i = 0; i < info->dls_cnt; ++i) {
                found.push_back({std::string(info->dls_serpath[i].dls_name) + "/" + kFile,
                                 "the search path of " + (name.empty() ? "the program" : name)});
            }
        }
    }
    dlclose(object);
}

// The loader's cache (ldconfig): a head of 48 bytes, entries of 24, which have the name's and the
// path's places at 4 and 8. Before glibc 2.32 an older format stands before it. Entries of other
// architectures are among them; these can't be opened.
void add_cached(Candidates& found) {
    std::FILE* file = std::fopen("/etc/ld.so.cache", "rbe");
    if (file == nullptr) return;
    std::string bytes;
    char part[4096];
    while (const auto read = std::fread(part, 1, sizeof(part), file)) bytes.append(part, read);
    std::fclose(file);
    constexpr std::size_t kHead = 48, kEntry = 24;
    constexpr const char* kMagicWord = "glibc-ld.so.cache1.1";
    const auto number = [&](std::size_t at) {
        std::uint32_t value = 0;
        std::memcpy(&value, bytes.data() + at, sizeof(value));
        return std::size_t{value};
    };
    bytes.erase(0, bytes.find(kMagicWord));
    if (bytes.size() < kHead) return;
    for (std::size_t i = 0; i < number(20) && kHead + (i + 1) * kEntry <= bytes.size(); ++i) {
        const auto name = number(kHead + i * kEntry + 4), path = number(kHead + i * kEntry + 8);
        if (name >= bytes.size() || path >= bytes.size()) return;
        // A std::string ends with a zero, so texts end within the bytes.
        if (std::strcmp(bytes.data() + name, kFile) != 0) continue;
        found.push_back({bytes.data() + path, "ldconfig"});
    }
}

// By path, in this order: a name would lead to sley, which has the same.
Candidates candidates() {
    const char* const given = std::getenv(kVariable);
    if (given != nullptr && *given != '\0') return {{given, kVariable}};
    Candidates found;
    std::vector<std::string> callers;
    dl_iterate_phdr(add_caller, &callers);
    for (const auto& caller : callers) add_search_path(caller, found);
    const auto own = own_path();  // .../sley/nccl/libnccl.so.2
    const auto folder = own.substr(0, own.rfind('/'));
    found.push_back({folder + "/../../nvidia/nccl/lib/" + kFile, "the wheel of NCCL beside sley"});
    add_cached(found);
    return found;
}

bool is_same_file(const std::string& a, const std::string& b) {
    struct stat one{}, other{};
    return stat(a.c_str(), &one) == 0 && stat(b.c_str(), &other) == 0 &&
           one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Why a file is no NCCL to pass calls on to, or nothing, and then `made` is complete.
std::string try_one(const Candidate& one, Real& made) {
    if (one.path.empty() || one.path.front() != '/') return "no absolute path";
    struct stat status{};
    if (stat(one.path.c_str(), &status) != 0) return std::strerror(errno);
    if (is_same_file(one.path, own_path())) return "sley's own library";
    // Without DEEPBIND, under which preloaded allocators break and sanitizers refuse to work. So
    // what the library calls of its own interface may come here: with its own handles, which sley
    // passes back to it.
    void* library = dlopen(one.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return dlerror();
#define OWN(result, name, since, parameters, arguments) \
    made.name = reinterpret_cast<decltype(made.name)>(dlsym(library, "pnccl" #name));
#define PASSED OWN
#include "nccl/functions.def"
    int version = 0;
    if (made.GetVersion == nullptr || made.GetVersion(&version) != Result::kSuccess) {
        return "no NCCL: it has no pncclGetVersion";
    }
    made.path = one.path;
    // Since 2.9 a version has two digits each for minor and patch.
    made.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
                   "." + std::to_string(version % 100);
    return {};
}

struct Search {
    std::mutex mutex;
    std::string tried;  // in vain
};
OfProcess<Search> search;

bool is_unwanted() { return Settings::from_environment().is_only(); }

}  // namespace

const Real& detail::open() {
    static const auto* none = new Real;
    const std::lock_guard lock(search->mutex);
    if (const Real* found = opened.load(std::memory_order_acquire)) return *found;
    search->tried.clear();
    if (is_unwanted()) return *none;
    const bool is_named = std::getenv(kVariable) != nullptr;
    for (const auto& one : candidates()) {
        // Most folders of a search path have none, which explains nothing.
        if (!is_named && access(one.path.c_str(), F_OK) != 0) continue;
        auto made = std::make_unique<Real>();
        const auto why = try_one(one, *made);
        if (why.empty()) {
            if (is_logging()) {
                log("NCCL " + made->version + " is " + made->path + " (" + one.origin + ")");
            }
            opened.store(made.get(), std::memory_order_release);
            return *made.release();
        }
        auto& tried = search->tried;
        tried += (tried.empty() ? "" : "; ") + one.path + " (" + one.origin + "): " + why;
    }
    return *none;
}

bool has_real() {
    static std::atomic<bool> has_looked{false};
    if (detail::opened.load(std::memory_order_acquire) != nullptr) return true;
    return !has_looked.exchange(true) && !real().path.empty();
}

Result lacking(const char* function, const char* since) {
    if (const Real* found = detail::opened.load(std::memory_order_acquire)) {
        return refuse(Result::kInvalidUsage, "N702",
                      std::string(function) + ", which NCCL has from " + since + " on",
                      "NCCL " + found->version + " at " + found->path,
                      std::string("Install a newer NCCL, or name one by ") + kVariable + ".");
    }
    if (is_unwanted()) {
        return refuse(Result::kSystemError, "N701",
                      "NVIDIA's NCCL, to which sley passes " + std::string(function) + " on",
                      "SLEY_NCCL=only", "Call functions that sley has, or unset SLEY_NCCL.");
    }
    const std::lock_guard lock(search->mutex);
    auto found = search->tried;
    if (std::getenv(kVariable) == nullptr) {
        found += std::string(found.empty() ? "" : "; else ") + "none in " + kVariable +
                 ", for libraries that are linked with it, in nvidia-nccl-cu13 beside sley, or by "
                 "ldconfig";
    }
    return refuse(Result::kSystemError, "N701",
                  "NVIDIA's NCCL, to which sley passes " + std::string(function) + " on", found,
                  std::string("Install nvidia-nccl-cu13, or give ") + kVariable +
                      " as the absolute path of its libnccl.so.2.");
}

}  // namespace sley::nccl
