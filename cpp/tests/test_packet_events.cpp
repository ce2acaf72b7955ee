// Events come out in order of time, and of one time in the order in which they were added.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "busbw/sim/packet/event_wheel.hpp"
#include "busbw/sim/packet/random.hpp"
#include "check.hpp"

using busbw::sim::count;
using busbw::sim::Picoseconds;
using busbw::sim::packet::Event;
using busbw::sim::packet::EventWheel;
using busbw::sim::packet::mixed;

namespace {

/// Adds and takes events as a simulation does, and compares with a sorted list.
void agrees_with_sorting(std::uint64_t seed, std::int64_t most_ahead_ps, std::size_t kept) {
  EventWheel wheel;
  std::vector<std::pair<std::int64_t, std::uint32_t>> pending;  // in order of (time, sequence)
  std::int64_t now = 0;
  std::uint32_t name = 0;
  std::uint64_t drawn = seed;
  const auto add = [&] {
    std::int64_t ahead = static_cast<std::int64_t>(mixed(drawn++) % static_cast<std::uint64_t>(most_ahead_ps));
    if (mixed(drawn++) % 4 == 0) ahead &= ~std::int64_t{0xFFF};  // many of one time
    wheel.push(Picoseconds{now + ahead}, name);
    const std::pair<std::int64_t, std::uint32_t> event{now + ahead, name++};
    pending.insert(std::upper_bound(pending.begin(), pending.end(), event, [](const auto& a, const auto& b) { return a.first < b.first; }), event);
  };
  for (std::size_t step = 0; step < 20'000; ++step) {
    if (pending.size() < kept || mixed(drawn++) % 2 == 0) add();
    if (pending.size() < kept) continue;
    const Event event = wheel.pop();
    CHECK_EQUAL(count(event.time), pending.front().first);
    CHECK_EQUAL(event.what, pending.front().second);
    now = count(event.time);
    pending.erase(pending.begin());
  }
  while (!pending.empty()) {
    const Event event = wheel.pop();
    CHECK_EQUAL(count(event.time), pending.front().first);
    CHECK_EQUAL(event.what, pending.front().second);
    pending.erase(pending.begin());
  }
  CHECK(wheel.empty());
}

void events_of_one_time_keep_their_order() {
  EventWheel wheel;
  for (std::uint32_t i = 0; i < 1000; ++i) wheel.push(Picoseconds{5'000'000}, i);
  for (std::uint32_t i = 0; i < 1000; ++i) CHECK_EQUAL(wheel.pop().what, i);
}

}  // namespace

int main() {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    agrees_with_sorting(seed << 32, 900, 10);                   // within a slot
    agrees_with_sorting(seed << 32, 2'000'000, 100);            // within two turns
    agrees_with_sorting(seed << 32, 50'000'000, 50);            // the coarse wheel
    agrees_with_sorting(seed << 32, 60'000'000'000, 30);        // the heap, over many rounds
    agrees_with_sorting(seed << 32, 100'000'000'000'000, 3);  // far apart
  }
  events_of_one_time_keep_their_order();
  return busbw::testing::failures == 0 ? 0 : 1;
}
