// Compares what libtorch.hpp and dlpack.hpp declare with PyTorch's own headers. It need only compile.
#include <ATen/dlpack.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "torch/dlpack.hpp"
#include "torch/libtorch.hpp"

namespace {

namespace ours = sley::dlpack;

#define SAME_VALUE(own, theirs) \
    static_assert(static_cast<long long>(own) == static_cast<long long>(theirs), #theirs)
#define SAME_PLACE(Own, own, Theirs, theirs)                                      \
    static_assert(offsetof(Own, own) == offsetof(Theirs, theirs) &&               \
                      sizeof(Own::own) == sizeof(std::declval<Theirs&>().theirs), \
                  #Theirs "." #theirs)

SAME_VALUE(ours::kCpu, kDLCPU);
SAME_VALUE(ours::kMajor, DLPACK_MAJOR_VERSION);
static_assert(sizeof(ours::Tensor) == sizeof(DLTensor), "DLTensor");
SAME_PLACE(ours::Device, type, DLDevice, device_type);
SAME_PLACE(ours::DataType, code, DLDataType, code);
SAME_PLACE(ours::DataType, bits, DLDataType, bits);
SAME_PLACE(ours::DataType, lanes, DLDataType, lanes);
SAME_PLACE(ours::Tensor, data, DLTensor, data);
SAME_PLACE(ours::Tensor, device, DLTensor, device);
SAME_PLACE(ours::Tensor, ndim, DLTensor, ndim);
SAME_PLACE(ours::Tensor, dtype, DLTensor, dtype);
SAME_PLACE(ours::Tensor, shape, DLTensor, shape);
SAME_PLACE(ours::Tensor, strides, DLTensor, strides);
SAME_PLACE(ours::Tensor, byte_offset, DLTensor, byte_offset);
SAME_PLACE(ours::ExchangeHeader, major, DLPackExchangeAPIHeader, version.major);
SAME_PLACE(ours::ExchangeHeader, minor, DLPackExchangeAPIHeader, version.minor);
SAME_PLACE(ours::ExchangeHeader, previous, DLPackExchangeAPIHeader, prev_api);
SAME_PLACE(ours::Exchange, header, DLPackExchangeAPI, header);
SAME_PLACE(ours::Exchange, read, DLPackExchangeAPI, dltensor_from_py_object_no_sync);
static_assert(std::is_same_v<int (*)(void*, DLTensor*), DLPackDLTensorFromPyObjectNoSync>,
              "DLPackDLTensorFromPyObjectNoSync");

// A type as it is passed: handles are pointers to other types there.
template <class T>
using Passed = std::conditional_t<
    std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>,
    std::conditional_t<std::is_pointer_v<std::remove_pointer_t<T>>, void**, void*>, T>;

template <class Function>
struct Call;
template <class Result, class... Arguments>
struct Call<Result (*)(Arguments...)> {
    using Type = Result (*)(Passed<Arguments>...);
};
template <class Own, class Theirs>
constexpr bool kSame = std::is_same_v<typename Call<Own>::Type, typename Call<Theirs>::Type>;

using Own = sley::libtorch::Functions;
#define SAME_FUNCTION(name) static_assert(kSame<decltype(Own::name), decltype(&::name)>, #name)

static_assert(std::is_same_v<sley::libtorch::Value, StableIValue>, "StableIValue");
static_assert(std::is_same_v<sley::libtorch::Error, AOTITorchError>, "AOTITorchError");
SAME_FUNCTION(aoti_torch_library_init_impl);
SAME_FUNCTION(aoti_torch_library_impl);
SAME_FUNCTION(aoti_torch_call_dispatcher);
SAME_FUNCTION(aoti_torch_get_data_ptr);
SAME_FUNCTION(aoti_torch_get_numel);
SAME_FUNCTION(aoti_torch_get_dtype);
SAME_FUNCTION(aoti_torch_is_contiguous);
SAME_FUNCTION(aoti_torch_delete_tensor_object);
SAME_FUNCTION(torch_string_length);
SAME_FUNCTION(torch_string_c_str);
SAME_FUNCTION(torch_delete_string);

}  // namespace
