// Vectors as arrays of NumPy, which own them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace sley {

template <class T>
using Array = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

template <class T>
using Matrix = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<2>>;

template <class T>
std::pair<T*, nanobind::capsule> own(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    const auto destroy = [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); };
    return {owned->data(), nanobind::capsule(owned, destroy)};
}

template <class T>
Array<T> array(std::vector<T>&& values) {
    const std::size_t size = values.size();
    const auto [data, owner] = own(std::move(values));
    return Array<T>(data, {size}, owner);
}

// The rows of a matrix, one after the other.
template <class T>
Matrix<T> matrix(std::vector<T>&& values, std::size_t rows, std::size_t columns) {
    const auto [data, owner] = own(std::move(values));
    return Matrix<T>(data, {rows, columns}, owner);
}

}  // namespace sley
