/// An address that stands for the same place on all ranks of a group: what is stored there is stored at all, what is loaded is the reduction over all.
///
/// On a GPU the switch does it (NVLS; `multimem` of PTX, sm_90): the order of reduction is the switch's. Elsewhere the place is looked up in every rank's window,
/// in the order of ranks. Order: relaxed; barriers around it, as for other stores.
#pragma once

#include "busbw/device/bfloat16.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

namespace detail {
template <class A, class B>
inline constexpr bool kIsSame = false;  // NVRTC has neither std::is_same nor the compilers' __is_same
template <class A>
inline constexpr bool kIsSame<A, A> = true;
}  // namespace detail

template <class T>
class MulticastPtr {
 public:
  /// at: the place on every rank. mapped: the multicast mapping of the same place; null where there is no switch.
  BUSBW_DEVICE MulticastPtr(SymPtr<T> at, std::uint32_t ranks, T* mapped) : at_(at), ranks_(ranks), mapped_(mapped) {}

  /// The reduction over all ranks of the i-th vector from `first` on. 16-byte aligned.
  template <class Op>
  BUSBW_DEVICE Vector<T> load_reduce(std::size_t first, std::size_t i, Op op) const {
    if constexpr (kHasMultimem) {
      static_assert(detail::kIsSame<Op, Sum>, "a switch adds; other operations are not bound here");
      static_assert(detail::kIsSame<T, float> || detail::kIsSame<T, BFloat16>, "a switch adds float and bfloat16 here");
      const auto* const p = reinterpret_cast<const Vector<T>*>(mapped_ + first) + i;
      std::uint32_t word[4];
      if constexpr (detail::kIsSame<T, float>)
        multimem_load_sum_f32(p, word);
      else
        multimem_load_sum_bf16(p, word);
      Vector<T> out;
      __builtin_memcpy(&out, word, sizeof out);
      return out;
    } else {
      Vector<T> sum = weak_load(reinterpret_cast<const Vector<T>*>(at_.at(0) + first) + i);
      for (std::uint32_t rank = 1; rank < ranks_; ++rank) sum = combined(sum, weak_load(reinterpret_cast<const Vector<T>*>(at_.at(rank) + first) + i), op);
      return sum;
    }
  }
  /// Stores a vector at all ranks.
  BUSBW_DEVICE void store(std::size_t first, std::size_t i, const Vector<T>& value) const {
    if constexpr (kHasMultimem) {
      std::uint32_t word[4];
      __builtin_memcpy(word, &value, sizeof word);
      multimem_store_16(reinterpret_cast<Vector<T>*>(mapped_ + first) + i, word);
    } else {
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) weak_store(reinterpret_cast<Vector<T>*>(at_.at(rank) + first) + i, value);
    }
  }

 private:
  SymPtr<T> at_;
  std::uint32_t ranks_;
  T* mapped_;
};

}  // namespace busbw::device
