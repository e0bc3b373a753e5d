// The parts of LibTorch's stable C interface that define operators, as PyTorch 2.10 and later have
// it (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h). Declared here, and
// found at run time in the LibTorch of the process, so that one build serves all these versions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sley::libtorch {

// A value on the stack of an operator's call: an integer itself, a tensor or a text by its handle.
using Value = std::uint64_t;
using Tensor = void*;
using Text = void*;
using Library = void*;
using Error = std::int32_t;  // 0: none
// The arguments are on the stack; the handles among them belong to the function.
using Kernel = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);

struct Functions {
    Error (*aoti_torch_library_init_impl)(const char* space, const char* key, const char* file,
                                          std::uint32_t line, Library* library);
    Error (*aoti_torch_library_impl)(Library library, const char* name, Kernel kernel);
    Error (*aoti_torch_call_dispatcher)(const char* name, const char* overload, Value* stack);
    Error (*aoti_torch_get_data_ptr)(Tensor tensor, void** data);
    Error (*aoti_torch_get_numel)(Tensor tensor, std::int64_t* numel);
    Error (*aoti_torch_get_dtype)(Tensor tensor, std::int32_t* dtype);
    Error (*aoti_torch_is_contiguous)(Tensor tensor, bool* is_contiguous);
    Error (*aoti_torch_delete_tensor_object)(Tensor tensor);
    Error (*torch_string_length)(Text text, std::size_t* length);
    Error (*torch_string_c_str)(Text text, const char** start);
    Error (*torch_delete_string)(Text text);
};

// The functions in the library at `path`, which the process has loaded. Throws std::runtime_error
// if one is missing.
Functions find_functions(const std::string& path);
// LibTorch's number of a type, by PyTorch's name; -1 if it has no such type.
std::int32_t find_type(const std::string& path, const std::string& name);

}  // namespace sley::libtorch
