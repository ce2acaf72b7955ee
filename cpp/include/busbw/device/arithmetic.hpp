/// What a reduction does to elements of one type, for code that knows its data as bytes.
#pragma once

#include "busbw/device/move.hpp"

namespace busbw::device {

enum class ReduceOp : unsigned char { sum, prod, min, max };

/// Calls body with the operation.
template <class Body>
BUSBW_DEVICE auto with_reduction(ReduceOp op, Body body) {
  switch (op) {
    case ReduceOp::prod: return body(Prod{});
    case ReduceOp::min: return body(Min{});
    case ReduceOp::max: return body(Max{});
    default: return body(Sum{});
  }
}

template <class T>
struct Arithmetic {
  static constexpr std::size_t kElementBytes = sizeof(T);

  /// dst, and `again` if it is given, = op over sources, in their order. bytes: whole elements. All threads of the block call. Order: weak.
  BUSBW_DEVICE_CALL void reduce(const Block& block, std::byte* dst, std::byte* again, std::byte* const* sources, std::uint32_t count, std::size_t bytes, ReduceOp op) const {
    with_reduction(op, [&](auto reduction) {
      const auto source = [&](std::uint32_t k) { return reinterpret_cast<const T*>(sources[k]); };
      const auto target = [&](std::uint32_t j) { return reinterpret_cast<T*>(j == 0 ? dst : again); };
      reduce_to_each<T>(block, target, again == nullptr ? 1 : 2, source, count, bytes / sizeof(T), reduction);
    });
  }

  /// op of the elements of two words.
  BUSBW_DEVICE_CALL std::uint64_t words(std::uint64_t a, std::uint64_t b, ReduceOp op) const {
    return with_reduction(op, [&](auto reduction) {
      T x[8 / sizeof(T)], y[8 / sizeof(T)];
      __builtin_memcpy(x, &a, sizeof a);
      __builtin_memcpy(y, &b, sizeof b);
      for (std::size_t i = 0; i < 8 / sizeof(T); ++i) x[i] = reduction(x[i], y[i]);
      std::uint64_t out;
      __builtin_memcpy(&out, x, sizeof out);
      return out;
    });
  }
};

}  // namespace busbw::device
