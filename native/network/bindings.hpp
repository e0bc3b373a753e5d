#pragma once

#include <nanobind/nanobind.h>

namespace sley {

// The transports, in the Python module `sley.engine._native`.
void define_network(nanobind::module_& m);

}  // namespace sley
