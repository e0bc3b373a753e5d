// Arrays of other libraries as calls on devices take them, for Python: without a copy, and without
// waiting for what computes them, since kernels start after it on the caller's stream.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "devices/arguments.hpp"
#include "devices/cuda_device.hpp"
#include "engine/reduce.hpp"
#include "torch/dlpack.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

// What NumPy's arrays tell by `__array_struct__` (NumPy's manual, "The array interface protocol").
struct ArrayStruct {
    int two, dimensions;
    char kind;
    int item_bytes, flags;
    Py_ssize_t *shape, *strides;
    void* data;
    PyObject* description;
};
constexpr int kContiguous = 0x1, kNativeOrder = 0x200, kWritable = 0x400;  // flags

// Objects of Python that every view needs; they live as long as the process.
struct Objects {
    nb::object array_class = nb::module_::import_("numpy").attr("ndarray");
    nb::str array_struct = nb::str("__array_struct__"), is_neg = nb::str("is_neg"),
            exchange = nb::str("__dlpack_c_exchange_api__"), grad = nb::str("requires_grad");
};
const Objects* g_objects = nullptr;

// DLPack's code of NumPy's kind of types and of the array interfaces; -1 for another kind.
int code_of(char kind) {
    constexpr std::string_view kinds = "iuf";
    const auto code = kinds.find(kind);
    return code == kinds.npos ? -1 : static_cast<int>(code);
}

const ElementType* type_of(const dlpack::DataType& type) {
    return type.lanes == 1 ? element_type(type.code, type.bits) : nullptr;
}

ArrayView view_of(const dlpack::Tensor& tensor, const ElementType* type, bool writable) {
    return {reinterpret_cast<Address>(tensor.data) + tensor.byte_offset, elements(tensor), type,
            writable};
}

std::string text(nb::handle object) { return nb::str(object).c_str(); }

ArrayView numpy_view(nb::handle array, const std::string& what) {
    const nb::object capsule = nb::getattr(array, g_objects->array_struct);
    const auto* said = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
    if (said == nullptr) throw nb::python_error();
    if ((said->flags & kContiguous) == 0) {
        const auto shape = text(array.attr("shape")), strides = text(array.attr("strides"));
        throw Refusal("K519", "elements side by side", "shape " + shape + ", strides " + strides,
                      what,
                      "Pass `np.ascontiguousarray(array)`; for an output, copy from it afterwards.");
    }
    const bool is_native = (said->flags & kNativeOrder) != 0;
    const auto* type = is_native ? element_type(code_of(said->kind), 8 * said->item_bytes) : nullptr;
    if (type == nullptr) {  // it may be another package's
        const nb::module_ types = nb::module_::import_("sley.engine.types");
        const auto name = text(types.attr("name_of")(array.attr("dtype")));
        type = element_type(name);
        if (type == nullptr) throw Refusal("R504", "one of " + element_types(), name + " in " + what);
    }
    ArrayView view{reinterpret_cast<Address>(said->data), 1, type, (said->flags & kWritable) != 0};
    for (int d = 0; d < said->dimensions; ++d) view.elements *= said->shape[d];
    return view;
}

// By DLPack's C interface, which PyTorch has; none for an array that needs a closer look, as one that
// has a gradient. The interface tells neither that, nor that a tensor's elements are the negatives of
// those in memory.
std::optional<ArrayView> tensor_view(nb::handle array, const dlpack::Device& place,
                                     const std::string& what) {
    const nb::object capsule = nb::getattr(array.type(), g_objects->exchange, nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsule)) return {};
    const auto& api = *static_cast<const dlpack::Exchange*>(
        PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
    if (api.header.major != dlpack::kMajor || api.read == nullptr) return {};
    dlpack::Tensor tensor{};
    if (api.read(array.ptr(), &tensor) != 0) {
        PyErr_Clear();
        return {};
    }
    if (tensor.device.type != place.type || tensor.device.id != place.id) return {};
    const auto found = view_of(tensor, type_of(tensor.dtype), true);
    const bool lacks_memory = found.address == 0 && found.elements > 0;
    if (found.type == nullptr || has_gaps(tensor) || lacks_memory) return {};
    if (!nb::getattr(array, g_objects->grad, nb::none()).is(nb::handle(Py_False))) return {};
    if (nb::getattr(array, g_objects->is_neg)().is(nb::handle(Py_True))) {
        throw Refusal("K519", "elements that are in memory", "a tensor of their negatives", what,
                      "Pass `tensor.resolve_neg()`.");
    }
    return found;
}

// An array whose library NumPy asks for its memory.
ArrayView host_view(nb::handle array, const std::string& what) {
    nb::object found;
    try {
        found = nb::module_::import_("numpy").attr("from_dlpack")(array);
    } catch (nb::python_error& problem) {  // any library's own, of any class
        if (!problem.matches(PyExc_Exception)) throw;
        const auto name = text(array.type().attr("__name__"));
        throw Refusal("K504", "an array in the memory of the host",
                      name + " (" + text(problem.value()) + ")", what,
                      "Pass a NumPy array, or a tensor on the host, detached from gradients.");
    }
    return numpy_view(found, what);
}

// What a library says of an array on a GPU. type: null for one that the table lacks, of this name.
// keeps: where the tensor's shape is.
struct Lent {
    dlpack::Tensor tensor{};
    bool writable = true;
    const ElementType* type = nullptr;
    std::string type_name;
    std::vector<std::int64_t> shape, strides;
    nb::object keeps;
};

Lent by_dlpack(nb::handle array, const dlpack::Device& place) {
    constexpr int unordered = -1;  // instead of a stream: the producer needn't synchronise
    const nb::object lend = array.attr("__dlpack__");
    Lent lent;
    try {
        lent.keeps = lend("stream"_a = unordered, "max_version"_a = nb::make_tuple(dlpack::kMajor, 0));
    } catch (nb::python_error& problem) {  // the library knows no versions
        if (!problem.matches(PyExc_TypeError)) throw;
        lent.keeps = lend("stream"_a = unordered);
    }
    constexpr const char* versioned = "dltensor_versioned";
    const bool is_versioned = PyCapsule_IsValid(lent.keeps.ptr(), versioned) != 0;
    const void* found = PyCapsule_GetPointer(lent.keeps.ptr(), is_versioned ? versioned : "dltensor");
    if (found == nullptr) throw nb::python_error();
    if (is_versioned) {
        const auto& tensor = *static_cast<const dlpack::VersionedTensor*>(found);
        lent.tensor = tensor.tensor;
        lent.writable = (tensor.flags & dlpack::kReadOnly) == 0;
    } else {
        lent.tensor = *static_cast<const dlpack::Tensor*>(found);
    }
    lent.tensor.device = place;
    lent.type = type_of(lent.tensor.dtype);
    if (lent.type == nullptr) {
        const auto name = text(nb::getattr(array, "dtype", nb::str("a type without a name")));
        lent.type_name = name.substr(name.rfind('.') + 1);
        lent.type = element_type(lent.type_name);
    }
    return lent;
}

// By version 3 of the CUDA array interface.
Lent by_interface(nb::handle array, const CudaDevice& device) {
    const nb::object said = array.attr("__cuda_array_interface__"), get = said.attr("get");
    if (nb::cast<int>(said["version"]) < 3 || !get("mask").is_none()) {
        throw std::invalid_argument(
            "BufferError: version 3 of the CUDA array interface, without a mask, is needed");
    }
    const auto [address, readonly] = nb::cast<std::pair<Address, bool>>(said["data"]);
    const auto place = address == 0 ? MemoryPlace{device.ordinal(), false} : device.place_of(address);
    if (!place) throw std::invalid_argument("BufferError: memory that the driver doesn't know");
    Lent lent;
    lent.writable = !readonly;
    const auto type = nb::cast<std::string>(said["typestr"]);  // order of bytes, kind, size in bytes
    if (type.size() == 3 && type[0] != '>') {
        lent.type = element_type(code_of(type[1]), 8 * (type[2] - '0'));
    }
    if (lent.type == nullptr) {
        const nb::object dtype = nb::module_::import_("numpy").attr("dtype")(said["typestr"]);
        lent.type_name = text(dtype.attr(nb::cast<bool>(dtype.attr("isnative")) ? "name" : "str"));
    }
    lent.shape = nb::cast<std::vector<std::int64_t>>(said["shape"]);
    const nb::object strides = get("strides");
    if (lent.type != nullptr && !strides.is_none()) {
        lent.strides = nb::cast<std::vector<std::int64_t>>(strides);
        for (auto& stride : lent.strides) stride /= lent.type->bits / 8;
        lent.tensor.strides = lent.strides.data();
    }
    lent.tensor.data = at(address);
    lent.tensor.device = {dlpack::kCuda, place->ordinal};
    lent.tensor.ndim = static_cast<std::int32_t>(lent.shape.size());
    lent.tensor.shape = lent.shape.data();
    return lent;
}

ArrayView gpu_view(nb::handle array, const CudaDevice& device, const std::string& what) {
    const auto unfit = [&](const char* rule, const std::string& found) {
        return Refusal(rule, "an array on device " + std::to_string(device.ordinal()), found, what);
    };
    // Libraries raise errors of any class.
    const auto asked = [&](const auto& about, const auto& ask) {
        try {
            return ask();
        } catch (nb::python_error& problem) {
            if (!problem.matches(PyExc_Exception)) throw;
            throw unfit("K519", about() + text(problem.type().attr("__name__")) + ": " +
                                    text(problem.value()));
        } catch (const nb::cast_error&) {
            throw unfit("K519", about() + "a value of another type than the protocol's");
        } catch (const std::exception& problem) {
            throw unfit("K519", about() + problem.what());
        }
    };
    std::optional<dlpack::Device> place;
    if (nb::hasattr(array, "__dlpack_device__")) {
        place = asked([] { return std::string(); }, [&] {
            const auto [kind, id] = nb::cast<std::pair<int, int>>(array.attr("__dlpack_device__")());
            return dlpack::Device{kind, id};
        });
        if (place->type != dlpack::kCuda && place->type != dlpack::kCudaManaged) {
            const auto kind = std::to_string(place->type);
            throw unfit("K504", "an array on " +
                                    (place->type == dlpack::kCpu ? "the host"
                                     : place->type == dlpack::kCudaHost
                                         ? "the host's pinned memory"
                                         : "a device of another kind (" + kind + ")"));
        }
    }
    const auto library = [&] {
        const nb::handle kind = array.type();
        return text(kind.attr("__module__")) + "." + text(kind.attr("__qualname__")) +
               ", which gave: ";
    };
    const Lent lent = asked(library, [&] {
        const bool lends = place && nb::hasattr(array, "__dlpack__");
        return lends ? by_dlpack(array, *place) : by_interface(array, device);
    });
    const auto& tensor = lent.tensor;
    if (tensor.device.id != device.ordinal()) {
        throw unfit("K504", "an array on device " + std::to_string(tensor.device.id));
    }
    if (lent.type == nullptr) throw Refusal("R504", "one of " + element_types(), lent.type_name, what);
    if (has_gaps(tensor)) {
        const auto list = [&tensor](const std::int64_t* first) {
            return text(nb::cast(std::vector<std::int64_t>(first, first + tensor.ndim)));
        };
        throw Refusal("K519", "elements side by side, in the order of the indices",
                      "shape " + list(tensor.shape) + " with strides of " + list(tensor.strides) +
                          " elements",
                      what);
    }
    return view_of(tensor, lent.type, lent.writable);
}

ArrayView view(nb::handle array, const Device& device, const std::string& what) {
    const auto* gpu = dynamic_cast<const CudaDevice*>(&device);
    const dlpack::Device place{gpu ? dlpack::kCuda : dlpack::kCpu, gpu ? gpu->ordinal() : 0};
    if (!nb::isinstance(array, g_objects->array_class)) {
        if (const auto found = tensor_view(array, place, what)) return *found;
        if (gpu == nullptr) return host_view(array, what);
    }
    return gpu ? gpu_view(array, *gpu, what) : numpy_view(array, what);
}

// The arrays of a call, or of none: those that the calls of a plan take.
class CallArrays {
public:
    // Two of each rank, its input or data, and its output: of each the device, the name in messages,
    // the number of the collective's blocks in it, and whether calls write it.
    using Row = std::tuple<nb::typed<nb::object, Device>, std::string, std::int64_t, bool>;
    explicit CallArrays(const std::vector<Row>& rows) {
        for (const auto& [device, what, blocks, is_written] : rows) {
            devices_.push_back(device);
            arrays_.push_back({what, blocks, is_written, {}});
        }
    }

    CallArrays given(const std::vector<nb::object>& arrays) const {
        CallArrays found(*this);
        for (std::size_t i = 0; i < arrays_.size(); ++i) {
            auto& own = found.arrays_[i];
            if (arrays.at(i).is_none()) continue;
            own.view = view(arrays[i], nb::cast<const Device&>(devices_[i]), own.what);
        }
        return found;
    }

    // The first array of each kind, by what a call's type and count depend on: elements, if there
    // is an array, blocks, and type. Of arrays of one kind all are right, or the first is told to be
    // wrong; and there are few kinds, whatever the number of ranks.
    using Kind = std::tuple<std::optional<std::int64_t>, std::int64_t, std::string_view>;
    std::vector<std::pair<std::string, Kind>> kinds() const {
        std::vector<std::pair<std::string, Kind>> found;
        for (const auto& own : arrays_) {
            Kind kind(std::nullopt, own.blocks, std::string_view());
            if (own.view) kind = {own.view->elements, own.blocks, own.view->type->name};
            const auto is_same = [&kind](const auto& one) { return one.second == kind; };
            if (std::any_of(found.begin(), found.end(), is_same)) continue;
            found.emplace_back(own.what, kind);
        }
        return found;
    }

    void check(const std::string& type) const { check_arrays(arrays_, type); }

    using Piece = std::pair<Address, std::int64_t>;
    std::vector<std::pair<Piece, Piece>> pieces() const {
        std::vector<std::pair<Piece, Piece>> found;
        const auto piece = [this](std::size_t i) {
            const auto& view = arrays_[i].view;
            return view ? Piece(view->address, view->bytes()) : Piece();
        };
        for (std::size_t i = 0; i < arrays_.size(); i += 2) {
            found.emplace_back(piece(i), piece(i + 1));
        }
        return found;
    }

private:
    std::vector<nb::object> devices_;
    std::vector<CallArray> arrays_;
};

}  // namespace

std::optional<ArrayView> usual_view(nb::handle array, const Device& device) {
    const auto* gpu = dynamic_cast<const CudaDevice*>(&device);
    const dlpack::Device place{gpu ? dlpack::kCuda : dlpack::kCpu, gpu ? gpu->ordinal() : 0};
    try {
        if (nb::isinstance(array, g_objects->array_class)) {
            return gpu ? std::nullopt : std::optional(numpy_view(array, ""));
        }
        const auto found = tensor_view(array, place, "");
        if (found || gpu == nullptr || array.is_none()) return found;
        return gpu_view(array, *gpu, "");
    } catch (const Refusal&) {
        return {};
    }
}

void define_views(nb::module_& m) {
    g_objects = new Objects;
    nb::class_<ArrayView>(m, "View",
                          "A caller's array on a device: the address of its first element, and the "
                          "number of its elements.")
        .def_ro("address", &ArrayView::address)
        .def_ro("elements", &ArrayView::elements)
        .def_ro("writable", &ArrayView::writable, "Whether kernels may write it.")
        .def_prop_ro("size_bytes", &ArrayView::bytes)
        .def_prop_ro("dtype", [](const ArrayView& self) { return self.type->name; },
                     "The name of the elements' type, the engine's or uint16.");
    m.def("view", &view, "array"_a.none(), "device"_a, "what"_a,
          "A view of an array on a device. what: its name in messages. K504, K519, R504.");
    nb::class_<CallArrays>(m, "CallArrays",
                           "The arrays of a call, or of none: those that the calls of a plan take.")
        .def(nb::init<const std::vector<CallArrays::Row>&>(), "rows"_a,
             "rows: two of each rank, its input or data, and its output: of each the device, the "
             "name in messages, the number of the collective's blocks in it, and whether calls "
             "write it.")
        .def("given", &CallArrays::given, "arrays"_a,
             "With the arrays of a call, or None. K504, K519, R504.")
        .def("kinds", &CallArrays::kinds,
             "The first array of each kind: its name, and elements (None: no array), blocks, type.")
        .def("check", &CallArrays::check, "dtype"_a,
             "K519 for misaligned arrays, and read-only ones that the call writes; R503 for arrays "
             "that share memory with one that it writes.")
        .def("pieces", &CallArrays::pieces, "Of each rank, address and bytes of both; zeros for none.");
}

}  // namespace sley
