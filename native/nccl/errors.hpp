// What this process was last told about errors, and NCCL_DEBUG's log.
#pragma once

#include <string>

#include "devices/refusal.hpp"
#include "nccl/abi.hpp"

namespace sley::nccl {

// Keeps one line in the form of sley's diagnostics as the last error, and logs it with
// NCCL_DEBUG=WARN or more. code: of its rule. Returns `result`.
Result refuse(Result result, const char* code, const std::string& expected,
              const std::string& found, const std::string& remedy);
// The same for what sley's other parts refuse.
Result refuse(Result result, const Refusal& why);
// In one line: "N620: expected ..., found ...".
std::string line_of(const Refusal& why);
// The real library returned or reported this: if it's an error, its text is now the last one.
void heard(Result result);
// The last error's line if it is sley's, otherwise null. It lasts until the thread's next call.
const char* own_error();
// NCCL's text isn't at hand where there is no NCCL.
const char* name_of(Result result);

bool is_logging();  // NCCL_DEBUG=INFO or TRACE
// To stderr, or to a file beside NCCL_DEBUG_FILE's.
void log(const std::string& line);
// To stderr, whatever NCCL_DEBUG is.
void warn(const std::string& line);

}  // namespace sley::nccl
