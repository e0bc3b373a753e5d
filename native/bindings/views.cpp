// Arrays of other libraries as calls on devices take them, for Python: without a copy, and without
// waiting for what computes them, since kernels start after it on the caller's stream.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
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

bool is_numpys(nb::handle array) {
    return nb::isinstance(array, g_objects->array_class);
}

// DLPack's code of NumPy's kind of types and of the array interfaces; -1 for another kind.
int code_of(char kind) {
    constexpr std::string_view kinds = "iuf";
    const auto code = kinds.find(kind);
    return code == kinds.npos ? -1 : static_cast<int>(code);
}

std::string text(nb::handle object) { return nb::str(object).c_str(); }

std::string name_of(nb::handle dtype) {
    return text(nb::module_::import_("sley.engine.types").attr("name_of")(dtype));
}

// None for an array that needs a closer look.
std::optional<ArrayView> numpy_view(nb::handle array) {
    const nb::object capsule = nb::getattr(array, g_objects->array_struct);
    const auto* said = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
    if (said == nullptr) throw nb::python_error();
    if ((said->flags & kContiguous) == 0) return {};
    const ElementType* type = nullptr;
    if ((said->flags & kNativeOrder) != 0) type = element_type(code_of(said->kind), 8 * said->item_bytes);
    if (type == nullptr) type = element_type(name_of(array.attr("dtype")));  // another package's
    if (type == nullptr) return {};
    ArrayView view{reinterpret_cast<Address>(said->data), 1, type, (said->flags & kWritable) != 0};
    for (int d = 0; d < said->dimensions; ++d) view.elements *= said->shape[d];
    return view;
}

// By DLPack's C interface, which PyTorch has; none for an array that needs a closer look. A tensor
// that is a part of a computation of gradients, or whose memory has the negatives of its elements,
// does: the interface doesn't say so.
std::optional<ArrayView> tensor_view(nb::handle array, const dlpack::Device& place) {
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
    const auto* type = tensor.dtype.lanes == 1 ? element_type(tensor.dtype.code, tensor.dtype.bits) : nullptr;
    const auto count = elements(tensor);
    if (type == nullptr || has_gaps(tensor) || (tensor.data == nullptr && count > 0)) return {};
    const nb::handle no = Py_False;
    if (!nb::getattr(array, g_objects->grad, nb::none()).is(no)) return {};
    if (!nb::getattr(array, g_objects->is_neg)().is(no)) return {};
    return ArrayView{reinterpret_cast<Address>(tensor.data) + tensor.byte_offset, count, type, true};
}

ArrayView host_view(nb::object array, const std::string& what) {
    if (!is_numpys(array)) {
        try {
            array = nb::module_::import_("numpy").attr("from_dlpack")(array);
        } catch (nb::python_error& problem) {
            const std::array refused = {PyExc_AttributeError, PyExc_TypeError, PyExc_BufferError,
                                        PyExc_RuntimeError};
            if (std::none_of(refused.begin(), refused.end(),
                             [&problem](PyObject* kind) { return problem.matches(kind); })) {
                throw;
            }
            throw Refusal("K504", "an array in the memory of the host",
                          text(array.type().attr("__name__")) + " (" + text(problem.value()) + ")", what);
        }
        if (const auto found = numpy_view(array)) return *found;
    }
    if (!nb::cast<bool>(array.attr("flags").attr("c_contiguous"))) {
        const auto shape = text(array.attr("shape")), strides = text(array.attr("strides"));
        throw Refusal("K519", "elements side by side", "shape " + shape + ", strides " + strides, what);
    }
    throw Refusal("R504", "one of " + element_types(), name_of(array.attr("dtype")) + " in " + what);
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
    const auto& type = lent.tensor.dtype;
    if (type.lanes == 1) lent.type = element_type(type.code, type.bits);
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
        throw nb::buffer_error("version 3 of the CUDA array interface, without a mask, is needed");
    }
    const auto [address, readonly] = nb::cast<std::pair<Address, bool>>(said["data"]);
    const auto place = address == 0 ? device.ordinal() : device.place_of(address);
    if (!place) throw nb::buffer_error("memory that the driver doesn't know");
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
    lent.tensor.device = {dlpack::kCuda, *place};
    lent.tensor.ndim = static_cast<std::int32_t>(lent.shape.size());
    lent.tensor.shape = lent.shape.data();
    return lent;
}

std::string list(const std::int64_t* first, std::int32_t size) {
    std::string numbers;
    for (std::int32_t d = 0; d < size; ++d) {
        numbers.append(d == 0 ? "" : ", ").append(std::to_string(first[d]));
    }
    return "[" + numbers + "]";
}

ArrayView gpu_view(nb::handle array, const CudaDevice& device, const std::string& what) {
    const auto unfit = [&](const char* rule, const std::string& found) {
        return Refusal(rule, "an array on device " + std::to_string(device.ordinal()), found, what);
    };
    // Libraries raise errors of any class.
    const auto asked = [&](const std::string& about, const auto& ask) {
        try {
            return ask();
        } catch (nb::python_error& problem) {
            if (!problem.matches(PyExc_Exception)) throw;
            throw unfit("K519", about + text(problem.type().attr("__name__")) + ": " +
                                    text(problem.value()));
        } catch (const nb::builtin_exception& problem) {
            throw unfit("K519", about + "BufferError: " + problem.what());
        } catch (const nb::cast_error&) {
            throw unfit("K519", about + "TypeError: another type than the protocol's");
        }
    };
    std::optional<dlpack::Device> place;
    if (nb::hasattr(array, "__dlpack_device__")) {
        place = asked("", [&] {
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
    const nb::handle kind = array.type();
    const auto name = text(kind.attr("__module__")) + "." + text(kind.attr("__qualname__"));
    const Lent lent = asked(name + ", which gave: ", [&] {
        const bool lends = place && nb::hasattr(array, "__dlpack__");
        return lends ? by_dlpack(array, *place) : by_interface(array, device);
    });
    const auto& tensor = lent.tensor;
    if (tensor.device.id != device.ordinal()) {
        throw unfit("K504", "an array on device " + std::to_string(tensor.device.id));
    }
    if (lent.type == nullptr) throw Refusal("R504", "one of " + element_types(), lent.type_name, what);
    if (has_gaps(tensor)) {
        throw Refusal("K519", "elements side by side, in the order of the indices",
                      "shape " + list(tensor.shape, tensor.ndim) + " with strides of " +
                          list(tensor.strides, tensor.ndim) + " elements",
                      what);
    }
    return {reinterpret_cast<Address>(tensor.data) + tensor.byte_offset, elements(tensor),
            lent.type, lent.writable};
}

ArrayView view(nb::handle array, const Device& device, const std::string& what) {
    if (const auto found = usual_view(array, device)) return *found;
    const auto* gpu = dynamic_cast<const CudaDevice*>(&device);
    return gpu ? gpu_view(array, *gpu, what) : host_view(nb::borrow(array), what);
}

// The arrays that calls of a plan take of the ranks of this process: of each its input and output, or
// its data.
class PlanArrays {
public:
    // An array's name in messages, and the number of the collective's blocks in it.
    using Buffer = std::pair<std::string, std::int64_t>;
    using Rank = std::pair<nb::typed<nb::object, Device>, std::vector<Buffer>>;

    explicit PlanArrays(const std::vector<Rank>& ranks) {
        for (const auto& [device, own] : ranks) {
            kept_.append(device);
            devices_.push_back(&nb::cast<Device&>(device));
            buffers_.insert(buffers_.end(), own.begin(), own.end());
        }
    }

    std::size_t ranks() const { return devices_.size(); }
    const std::vector<Buffer>& buffers() const { return buffers_; }
    const Device& device(std::size_t rank) const { return *devices_[rank]; }

private:
    nb::list kept_;
    std::vector<const Device*> devices_;
    std::vector<Buffer> buffers_;
};

// The arrays of a call, which last as long as the caller keeps them.
class GivenArrays {
public:
    // sides: of each rank its input, then of each its output; or of each its data.
    GivenArrays(std::shared_ptr<const PlanArrays> plan,
                const std::vector<std::vector<nb::object>>& sides)
        : plan_(std::move(plan)), sides_(sides.size()), views_(plan_->buffers().size()) {
        for (std::size_t side = 0; side < sides_; ++side) {
            for (std::size_t rank = 0; rank < plan_->ranks(); ++rank) {
                const auto& array = sides[side].at(rank);
                const auto at = rank * sides_ + side;
                if (array.is_none()) continue;
                views_.at(at) = view(array, plan_->device(rank), what(at));
            }
        }
    }

    // The first array of each type, of those with elements; the first of all if no array has any
    // and nothing else tells the type.
    std::vector<std::pair<std::string, std::string_view>> types(bool is_known) const {
        std::vector<std::pair<std::string, std::string_view>> found;
        for (const bool filled : {true, false}) {
            for (std::size_t i = 0; i < views_.size(); ++i) {
                if (!views_[i] || (filled && views_[i]->elements == 0)) continue;
                const auto name = views_[i]->type->name;
                const auto same = [name](const auto& one) { return one.second == name; };
                if (std::none_of(found.begin(), found.end(), same)) found.emplace_back(what(i), name);
                if (!filled) break;
            }
            if (is_known || !found.empty()) break;
        }
        return found;
    }

    // Name, elements and blocks: the first array of each number of elements and blocks.
    using Part = std::tuple<std::string, std::optional<std::int64_t>, std::int64_t>;
    std::vector<Part> parts() const {
        std::vector<Part> found;
        for (std::size_t i = 0; i < views_.size(); ++i) {
            const auto elements = views_[i] ? std::optional(views_[i]->elements) : std::nullopt;
            const auto& [what, blocks] = plan_->buffers()[i];
            const auto same = [elements, blocks = blocks](const Part& one) {
                return std::get<1>(one) == elements && std::get<2>(one) == blocks;
            };
            if (std::none_of(found.begin(), found.end(), same)) found.emplace_back(what, elements, blocks);
        }
        return found;
    }

    void check(const std::string& type) const {
        std::vector<CallArray> filled;
        for (std::size_t i = 0; i < views_.size(); ++i) {
            if (!views_[i] || views_[i]->elements == 0) continue;
            filled.push_back({what(i), *views_[i], i % sides_ + 1 == sides_});
        }
        check_arrays(filled, type);
    }

    using Piece = std::pair<Address, std::int64_t>;
    std::vector<std::array<Piece, 2>> pieces() const {
        std::vector<std::array<Piece, 2>> found(plan_->ranks());
        for (std::size_t i = 0; i < views_.size(); ++i) {
            if (views_[i]) found[i / sides_][i % sides_] = {views_[i]->address, views_[i]->bytes()};
        }
        return found;
    }

private:
    const std::string& what(std::size_t i) const { return plan_->buffers()[i].first; }

    std::shared_ptr<const PlanArrays> plan_;
    std::size_t sides_;
    std::vector<std::optional<ArrayView>> views_;
};

}  // namespace

std::optional<ArrayView> usual_view(nb::handle array, const Device& device) {
    const auto* gpu = dynamic_cast<const CudaDevice*>(&device);
    if (!is_numpys(array)) {
        return tensor_view(array, gpu ? dlpack::Device{dlpack::kCuda, gpu->ordinal()}
                                      : dlpack::Device{dlpack::kCpu, 0});
    }
    return gpu ? std::nullopt : numpy_view(array);
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
                     "The name of the elements' type, the engine's or uint16.")
        .def_prop_ro("number",
                     [](const ArrayView& self) {
                         const auto number = self.type - std::begin(kElementTypes);
                         return number < kDataTypes ? number : -1;
                     },
                     "The engine's number of the type; -1 for uint16, bits of another.");
    m.def("view", &view, "array"_a.none(), "device"_a, "what"_a,
          "A view of an array on a device. what: its name in messages. K504, K519, R504.");
    nb::class_<PlanArrays>(m, "PlanArrays",
                           "The arrays that calls of a plan take of the ranks of this process.")
        .def(nb::init<const std::vector<PlanArrays::Rank>&>(), "ranks"_a,
             "ranks: of each its device, and of its input and output, or its data, the name in "
             "messages and the number of blocks.");
    nb::class_<GivenArrays>(m, "GivenArrays", "The arrays of a call, in the order of the ranks.")
        .def(nb::init<std::shared_ptr<const PlanArrays>,
                      const std::vector<std::vector<nb::object>>&>(),
             "plan"_a, "sides"_a,
             "sides: the inputs, and the outputs, of the ranks; None where there is none. K504, K519, "
             "R504.")
        .def("types", &GivenArrays::types, "is_known"_a,
             "The first array of each type, of those with elements; if none has any, and nothing "
             "else tells the type, the first of all.")
        .def("parts", &GivenArrays::parts,
             "Name, elements and blocks: the first array of each number of elements and blocks.")
        .def("check", &GivenArrays::check, "dtype"_a,
             "K519 for misaligned arrays, and read-only ones that the call writes; R503 for arrays "
             "that share memory with one that it writes.")
        .def("pieces", &GivenArrays::pieces,
             "Of each rank, address and bytes of its input (data) and its output; zeros for none.");
}

}  // namespace sley
