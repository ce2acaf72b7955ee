/// Columns between Python and the core: read where they lie, given back as arrays that own what they show.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace busbw::bindings {

namespace nb = nanobind;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::vector<T> values(const Column<T>& column) {
  return {column.data(), column.data() + column.shape(0)};
}

/// Where values lie, and who lets go of them once no array shows them any more.
template <class Values>
std::pair<typename Values::value_type*, nb::capsule> kept(Values values) {
  auto owned = std::make_unique<Values>(std::move(values));
  auto* const data = owned->data();
  return {data, nb::capsule(owned.release(), [](void* p) noexcept { delete static_cast<Values*>(p); })};
}

/// The values as an array.
template <class T>
nb::ndarray<nb::numpy, const T, nb::ndim<1>> column(std::vector<T>&& values) {
  const std::size_t size = values.size();
  const auto [data, owner] = kept(std::move(values));
  return {data, {size}, owner};
}

}  // namespace busbw::bindings
