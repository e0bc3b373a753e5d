// Errors of NVIDIA's driver as refusals.
#pragma once

#include "devices/cuda_driver.hpp"
#include "devices/refusal.hpp"

namespace sley::cuda {

// K502 if the driver is too old to have the function.
Refusal refusal_of(const Error& error);

}  // namespace sley::cuda
