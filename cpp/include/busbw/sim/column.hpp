/// A column of many values: a std::vector whose memory, once it is large, asks the system for large pages.
///
/// A program of a million flows is a few hundred megabytes that are written once and read a few times: with pages of 4 KiB a third of a run is spent in the
/// kernel, handing them out.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace busbw::sim {

template <class T>
struct LargePages {
  using value_type = T;

  LargePages() = default;
  template <class U>
  LargePages(const LargePages<U>&) {}

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_array_new_length();
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kLarge) return static_cast<T*>(::operator new(bytes, std::align_val_t{alignof(T)}));
    void* memory = ::operator new((bytes + kPage - 1) / kPage * kPage, std::align_val_t{kPage});
#ifdef __linux__
    madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: where it is not granted, small pages do
#endif
    return static_cast<T*>(memory);
  }

  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, std::align_val_t{count * sizeof(T) < kLarge ? alignof(T) : kPage}); }

  template <class U>
  bool operator==(const LargePages<U>&) const {
    return true;
  }

 private:
  static constexpr std::size_t kPage = std::size_t{1} << 21;  ///< of x86-64, and of AArch64 with a granule of 4 KiB
  static constexpr std::size_t kLarge = 2 * kPage;            ///< from which rounding up to whole pages costs little
};

template <class T>
using Column = std::vector<T, LargePages<T>>;

}  // namespace busbw::sim
