/// Memory orders by the names that the CUDA and the C++ memory model share.
#pragma once

namespace busbw::device {

/// kRelaxed: the word alone. kAcquire, of a load: what the writer did before its release is seen after it. kRelease, of a store.
enum class Order : unsigned char { relaxed, acquire, release };

inline constexpr Order kRelaxed = Order::relaxed;
inline constexpr Order kAcquire = Order::acquire;
inline constexpr Order kRelease = Order::release;

}  // namespace busbw::device
