#include "torch/libtorch.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace sley::libtorch {
namespace {

void* open(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("not loaded: " + path);
    return library;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("LibTorch without ") + name);
}

}  // namespace

Functions find_functions(const std::string& path) {
    void* library = open(path);
    Functions f{};
    find(library, "aoti_torch_library_init_impl", f.aoti_torch_library_init_impl);
    find(library, "aoti_torch_library_impl", f.aoti_torch_library_impl);
    find(library, "aoti_torch_call_dispatcher", f.aoti_torch_call_dispatcher);
    find(library, "aoti_torch_get_data_ptr", f.aoti_torch_get_data_ptr);
    find(library, "aoti_torch_get_numel", f.aoti_torch_get_numel);
    find(library, "aoti_torch_get_dtype", f.aoti_torch_get_dtype);
    find(library, "aoti_torch_is_contiguous", f.aoti_torch_is_contiguous);
    find(library, "aoti_torch_delete_tensor_object", f.aoti_torch_delete_tensor_object);
    find(library, "torch_string_length", f.torch_string_length);
    find(library, "torch_string_c_str", f.torch_string_c_str);
    find(library, "torch_delete_string", f.torch_delete_string);
    return f;
}

std::int32_t find_type(const std::string& path, const std::string& name) {
    const auto symbol = "aoti_torch_dtype_" + name;
    const auto type = reinterpret_cast<std::int32_t (*)()>(dlsym(open(path), symbol.c_str()));
    return type == nullptr ? -1 : type();
}

}  // namespace sley::libtorch
