// Python objects that C++ reads attribute by attribute, and columns of NumPy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

namespace sley {

template <class T>
using Column = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig,
                                 nanobind::device::cpu>;

template <class T>
std::vector<T> to_vector(const Column<T>& column) {
    return std::vector<T>(column.data(), column.data() + column.size());
}

// Attribute `name`; throws AttributeError if it is missing, TypeError for another type.
template <class T>
T attribute(nanobind::handle object, const char* name) {
    T value{};
    if (!nanobind::try_cast(object.attr(name), value)) {
        throw nanobind::type_error((std::string("an attribute of another type: ") + name).c_str());
    }
    return value;
}

template <class T>
std::vector<T> column(nanobind::handle object, const char* name) {
    return to_vector(attribute<Column<T>>(object, name));
}

}  // namespace sley

// A Python class, by its full name, for signatures, and so for the stub, where strict typing checks
// it. Without type checks, a missing attribute is an error at run time.
#define SLEY_PYTHON_CLASS(Name, full_name)                        \
    class Name : public nanobind::object {                        \
        NB_OBJECT_DEFAULT(Name, nanobind::object, full_name, any) \
        static bool any(PyObject*) { return true; }               \
    }

namespace sley {

// A function of any signature.
SLEY_PYTHON_CLASS(AnyFunction, "collections.abc.Callable[..., typing.Any]");

}  // namespace sley
