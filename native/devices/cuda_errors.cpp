#include "devices/cuda_errors.hpp"

namespace sley::cuda {
namespace {

// Rules of errors by their names, each between blanks and without "CUDA_ERROR_". subject: what an
// invalid argument of the call would be; or "", for any.
struct RuleOf {
    std::string_view subject;
    const char* rule;
    std::string_view names;
};

constexpr RuleOf kRules[] = {
    {"stream", "K517", " INVALID_HANDLE INVALID_CONTEXT "},
    {"sharing", "K514",
     " INVALID_VALUE INVALID_CONTEXT INVALID_HANDLE MAP_FAILED NOT_SUPPORTED OPERATING_SYSTEM "},
    {"kernel", "K503", " NOT_FOUND "},
    {"access", "K509", " INVALID_VALUE INVALID_DEVICE NOT_SUPPORTED "},
    {"", "K501",
     " NOT_INITIALIZED STUB_LIBRARY DEVICE_UNAVAILABLE SYSTEM_NOT_READY SYSTEM_DRIVER_MISMATCH "
     "COMPAT_NOT_SUPPORTED_ON_DEVICE "},
    {"", "K502", " INVALID_IMAGE NO_BINARY_FOR_GPU INVALID_PTX UNSUPPORTED_PTX_VERSION "},
    {"", "K506", " COOPERATIVE_LAUNCH_TOO_LARGE LAUNCH_OUT_OF_RESOURCES "},
    {"", "K507", " OUT_OF_MEMORY "},
    {"", "K508", " LAUNCH_TIMEOUT "},
    {"", "K509", " PEER_ACCESS_UNSUPPORTED TOO_MANY_PEERS "},
    {"", "K510", " NO_DEVICE INVALID_DEVICE "},
    {"", "K518",
     " STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED STREAM_CAPTURE_IMPLICIT "
     "STREAM_CAPTURE_WRONG_THREAD "},
};

constexpr std::string_view kFatal =
    " ECC_UNCORRECTABLE ILLEGAL_ADDRESS LAUNCH_TIMEOUT ASSERT HARDWARE_STACK_ERROR "
    "ILLEGAL_INSTRUCTION MISALIGNED_ADDRESS INVALID_ADDRESS_SPACE INVALID_PC LAUNCH_FAILED ";

const char* rule_of(std::string_view subject, const std::string& name) {
    for (const auto& each : kRules) {
        const bool is_of = each.subject.empty() || each.subject == subject;
        if (is_of && each.names.find(name) != std::string_view::npos) return each.rule;
    }
    return "K516";
}

}  // namespace

Refusal refusal_of(const Error& error) {
    if (error.name == "missing") {
        int version = 0;
        cuDriverGetVersion(&version);
        return {"K502", "a driver for CUDA 12 or newer (525.60), for " + error.doing,
                "Function \"" + error.function + "\" not found, in a driver for CUDA " +
                    std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)};
    }
    if (error.name == "elsewhere") {
        return {"K517", "a stream of " + error.doing, "one of another device"};
    }
    constexpr std::string_view kPrefix = "CUDA_ERROR_";
    const auto start = error.name.rfind(kPrefix, 0) == 0 ? kPrefix.size() : 0;
    const auto name = " " + error.name.substr(start) + " ";
    auto found = error.name + ": " + (error.words.empty() ? "an error without a name" : error.words);
    if (kFatal.find(name) != std::string_view::npos) {
        found += "; the process can no longer use the device, start a new one";
    }
    if (name == " NOT_INITIALIZED ") {
        found += "; a process forked after its parent used CUDA gets this error, use `spawn`";
    }
    return {rule_of(error.subject, name), error.function + " to succeed, " + error.doing, found};
}

}  // namespace sley::cuda
