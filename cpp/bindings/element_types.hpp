/// Names of dtypes and operations as Python has them, as C++ types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "busbw/device/arithmetic.hpp"
#include "busbw/device/bfloat16.hpp"
#include "busbw/device/float8.hpp"

namespace busbw::bindings {

template <class T>
struct TypeOf {
  using type = T;
};

/// Calls body with a TypeOf for a dtype's name.
template <class Body>
auto with_type(const std::string& dtype, Body body) {
  if (dtype == "float32") return body(TypeOf<float>{});
  if (dtype == "float64") return body(TypeOf<double>{});
  if (dtype == "float16") return body(TypeOf<_Float16>{});
  if (dtype == "bfloat16") return body(TypeOf<device::BFloat16>{});
  if (dtype == "int8") return body(TypeOf<std::int8_t>{});
  if (dtype == "uint8") return body(TypeOf<std::uint8_t>{});
  if (dtype == "int32") return body(TypeOf<std::int32_t>{});
  if (dtype == "uint32") return body(TypeOf<std::uint32_t>{});
  if (dtype == "int64") return body(TypeOf<std::int64_t>{});
  if (dtype == "uint64") return body(TypeOf<std::uint64_t>{});
  throw std::invalid_argument("no dtype " + dtype);
}

/// An operation by name; avg is a sum, which the caller divides.
inline device::ReduceOp reduction_named(const std::string& op) {
  if (op == "sum" || op == "avg") return device::ReduceOp::sum;
  if (op == "prod") return device::ReduceOp::prod;
  if (op == "min") return device::ReduceOp::min;
  if (op == "max") return device::ReduceOp::max;
  throw std::invalid_argument("no operation " + op);
}

/// Arithmetic of a dtype behind two function pointers, so that what reduces bytes is compiled once.
struct ErasedArithmetic {
  std::size_t element_bytes;
  void (*reduce_bytes)(const device::Block&, std::byte*, std::byte*, std::byte* const*, std::uint32_t, std::size_t, device::ReduceOp);
  std::uint64_t (*reduce_words)(std::uint64_t, std::uint64_t, device::ReduceOp);

  void reduce(const device::Block& block, std::byte* dst, std::byte* again, std::byte* const* sources, std::uint32_t count, std::size_t bytes, device::ReduceOp op) const {
    reduce_bytes(block, dst, again, sources, count, bytes, op);
  }
  std::uint64_t words(std::uint64_t a, std::uint64_t b, device::ReduceOp op) const { return reduce_words(a, b, op); }
};

inline ErasedArithmetic arithmetic_of(const std::string& dtype) {
  const auto erased = [](auto type) {
    using T = typename decltype(type)::type;
    using Of = device::Arithmetic<T>;
    return ErasedArithmetic{
        sizeof(T),
        [](const device::Block& block, std::byte* dst, std::byte* again, std::byte* const* sources, std::uint32_t count, std::size_t bytes, device::ReduceOp op) {
          Of{}.reduce(block, dst, again, sources, count, bytes, op);
        },
        [](std::uint64_t a, std::uint64_t b, device::ReduceOp op) { return Of{}.words(a, b, op); }};
  };
  if (dtype == "float8_e4m3") return erased(TypeOf<device::Float8E4M3>{});
  if (dtype == "float8_e5m2") return erased(TypeOf<device::Float8E5M2>{});
  return with_type(dtype, erased);
}

}  // namespace busbw::bindings
