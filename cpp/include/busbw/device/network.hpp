/// Movement between nodes: the device writes orders into a ring, a proxy (a thread of the host here, a NIC elsewhere) carries them out.
///
/// Puts are unordered among themselves, as on a network with adaptive routing. A weak signal tells that its own put has settled; a strong one that all
/// puts before it in the ring have; a flush waits for that, and for the sources to be free. What the device stored before it posted an order, the
/// proxy sees; what a signal tells, the waiter sees. The device never touches the peer's memory: an order names a window and a place in it.
#pragma once

#include "busbw/device/packet.hpp"
#include "busbw/device/window.hpp"

namespace busbw::device {

enum class OrderKind : std::uint32_t { put, put_packets, put_value, signal };

/// What the proxy is to do. One line; `ready` is its number + 1 once it is all there.
struct alignas(64) Descriptor {
  std::uint64_t ready;
  OrderKind kind;
  std::uint32_t peer;
  std::uint32_t source_window;  ///< of this rank
  std::uint32_t target_window;  ///< of the peer
  std::uint64_t source;         ///< bytes from the start of the window; of put_value, the value
  std::uint64_t target;
  std::uint64_t bytes;
  std::uint64_t counter;        ///< a word of the peer's wire window that goes up by one: with a put, once it has settled; 0: none
};
static_assert(sizeof(Descriptor) == 64);

/// The ring in a rank's wire window: orders posted, orders taken, orders settled, each on a line; then the orders.
struct Ring {
  std::byte* at;
  std::uint64_t depth;

  static constexpr std::uint64_t kHeadBytes = 3 * 64;
  BUSBW_DEVICE static constexpr std::uint64_t bytes(std::uint64_t depth) { return kHeadBytes + depth * sizeof(Descriptor); }
  BUSBW_DEVICE std::uint64_t& posted() const { return *reinterpret_cast<std::uint64_t*>(at); }
  BUSBW_DEVICE std::uint64_t& taken() const { return *reinterpret_cast<std::uint64_t*>(at + 64); }
  BUSBW_DEVICE std::uint64_t& settled() const { return *reinterpret_cast<std::uint64_t*>(at + 128); }
  BUSBW_DEVICE Descriptor& order(std::uint64_t number) const { return reinterpret_cast<Descriptor*>(at + kHeadBytes)[number % depth]; }
};

/// The device's end of a ring. Any thread of any block may post; one thread calls.
struct Port {
  Ring ring;
  std::uint32_t block, peer;  ///< for reports

  /// Posts an order: release. Waits while the ring is full.
  BUSBW_DEVICE WaitResult post(const Descriptor& order, Deadline deadline) const {
    const std::uint64_t number = SystemAtomic<std::uint64_t>(ring.posted()).fetch_add(1, kRelaxed);
    if (const WaitResult stop = wait_until(ring.taken(), number + 1 - ring.depth, kAcquire, deadline, Primitive::channel_wait, block, peer); stop != kArrived)
      return stop;
    Descriptor& place = ring.order(number);
    weak_store(&place.kind, order.kind);
    weak_store(&place.peer, order.peer);
    weak_store(&place.source_window, order.source_window);
    weak_store(&place.target_window, order.target_window);
    weak_store(&place.source, order.source);
    weak_store(&place.target, order.target);
    weak_store(&place.bytes, order.bytes);
    weak_store(&place.counter, order.counter);
    SystemAtomic<std::uint64_t>(place.ready).store(number + 1, kRelease);
    return kArrived;
  }
  /// One more on a counter of the peer, behind all puts posted before: strong.
  BUSBW_DEVICE WaitResult signal(std::uint64_t counter, Deadline deadline) const {
    return post({0, OrderKind::signal, peer, 0, 0, 0, 0, 0, counter}, deadline);
  }
  /// Waits until all orders posted so far have settled.
  BUSBW_DEVICE WaitResult flush(Deadline deadline) const {
    const std::uint64_t number = SystemAtomic<std::uint64_t>(ring.posted()).load(kRelaxed);
    return wait_until(ring.settled(), number, kAcquire, deadline, Primitive::flush_wait, block, peer);
  }
};

}  // namespace busbw::device
