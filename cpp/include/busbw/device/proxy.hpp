/// Who carries out what devices post (network.hpp): a thread of the host, or one of the simulated machine's. Not for a device.
#pragma once

#include <vector>

#include "busbw/device/move.hpp"
#include "busbw/device/network.hpp"

namespace busbw::device {

/// Carries out the orders of a rank's rings. One thread calls. `Pick` says which of the puts under way in a ring settles next: pick(n) is a number below n, or
/// n for "none now"; at most kMostUnderWay are, and so far puts overtake each other.
class Proxy {
 public:
  static constexpr std::size_t kMostUnderWay = 8;

  /// windows: of rank r and window w, windows[r * window_count + w]; they and the wires as the proxy maps them.
  Proxy(std::uint32_t rank, const Window& wire, std::vector<std::byte*> windows, std::uint32_t window_count, const std::vector<Ring>& rings)
      : rank_(rank), wire_(wire), windows_(std::move(windows)), window_count_(window_count) {
    for (const Ring& ring : rings) {
      const std::uint64_t begin = SystemAtomic<std::uint64_t>(ring.settled()).load(kRelaxed);  // where the proxy before left off
      queues_.push_back({ring, begin, begin, false, {}, {}});
    }
  }

  /// Looks at every ring once: takes an order if there is one, and lets a put settle if `pick` will. Whether anything was done.
  template <class Pick>
  bool turn(Pick pick) {
    bool did = false;
    for (Queue& queue : queues_) {
      did = take(queue) || did;
      const std::size_t under_way = queue.puts.size();
      if (under_way == 0) continue;
      const std::size_t chosen = pick(static_cast<std::uint32_t>(under_way));
      if (chosen >= under_way) continue;
      settle(queue, chosen);
      did = true;
    }
    return did;
  }

  /// Whether nothing is left of what was posted.
  bool idle() const {
    for (const Queue& queue : queues_)
      if (SystemAtomic<std::uint64_t>(queue.ring.posted()).load(kRelaxed) != queue.told) return false;
    return true;
  }

 private:
  struct Queue {
    Ring ring;
    std::uint64_t next;  ///< order to take
    std::uint64_t told;  ///< orders settled, as was told
    bool barred;         ///< `signal` waits for the puts before it
    Descriptor signal;
    std::vector<Descriptor> puts;  ///< under way
  };

  bool take(Queue& queue) {
    if (queue.barred || queue.puts.size() == kMostUnderWay) return false;
    Descriptor& place = queue.ring.order(queue.next);
    if (SystemAtomic<std::uint64_t>(place.ready).load(kAcquire) != queue.next + 1) return false;
    const Descriptor order{queue.next + 1,          weak_load(&place.kind),   weak_load(&place.peer),  weak_load(&place.source_window), weak_load(&place.target_window),
                           weak_load(&place.source), weak_load(&place.target), weak_load(&place.bytes), weak_load(&place.counter)};
    SystemAtomic<std::uint64_t>(queue.ring.taken()).store(++queue.next, kRelease);
    if (order.kind != OrderKind::signal) {
      queue.puts.push_back(order);
      return true;
    }
    queue.signal = order;
    queue.barred = true;
    if (queue.puts.empty()) tell(queue);
    return true;
  }

  void settle(Queue& queue, std::size_t chosen) {
    carry_out(queue.puts[chosen]);
    queue.puts.erase(queue.puts.begin() + static_cast<std::ptrdiff_t>(chosen));
    if (queue.barred && queue.puts.empty())
      tell(queue);
    else
      told(queue);
  }
  void tell(Queue& queue) {
    count(queue.signal);
    queue.barred = false;
    told(queue);
  }
  /// All orders before the oldest under way have settled.
  void told(Queue& queue) {
    std::uint64_t oldest = queue.barred ? queue.signal.ready - 1 : queue.next;
    for (const Descriptor& put : queue.puts) oldest = put.ready - 1 < oldest ? put.ready - 1 : oldest;
    if (oldest == queue.told) return;
    queue.told = oldest;
    SystemAtomic<std::uint64_t>(queue.ring.settled()).store(oldest, kRelease);
  }
  void count(const Descriptor& order) {
    if (order.counter != 0) SystemAtomic<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(wire_.base[order.peer] + order.counter)).fetch_add(1, kRelease);
  }

  void carry_out(const Descriptor& order) {
    std::byte* const to = windows_[order.peer * window_count_ + order.target_window] + order.target;
    const std::byte* const from = order.kind == OrderKind::put_value ? nullptr : windows_[rank_ * window_count_ + order.source_window] + order.source;
    if (order.kind == OrderKind::put_value) {
      weak_store(reinterpret_cast<std::uint64_t*>(to), order.source);
    } else if (order.kind == OrderKind::put) {
      copy_bytes(Block{0, 1, 0, 1, nullptr}, to, from, order.bytes);
    } else {
      for (std::uint64_t i = 0; i < order.bytes; i += 2 * kWordBytes) {
        std::uint64_t first, second;
        load_packet(reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from) + i), first, second);
        store_packet(reinterpret_cast<std::uint64_t*>(to + i), first, second);
      }
    }
    count(order);
  }

  std::uint32_t rank_;
  Window wire_;
  std::vector<std::byte*> windows_;
  std::uint32_t window_count_;
  std::vector<Queue> queues_;
};

}  // namespace busbw::device
