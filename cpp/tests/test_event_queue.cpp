// Events come in order of time, and those of one time as they were pushed.
#include "busbw/sim/event_queue.hpp"

#include <cstdint>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

#include "check.hpp"

using busbw::sim::count;
using busbw::sim::EventQueue;
using busbw::sim::kNever;
using busbw::sim::Picoseconds;

namespace {

void nothing_waits_in_an_empty_queue() {
  EventQueue<int> queue;
  CHECK(queue.empty());
  CHECK(queue.next_time() == kNever);
}

/// The same as an ordered set of (time, sequence), whatever is pushed while events are taken.
void order_is_time_then_sequence() {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    EventQueue<int> queue;
    std::set<std::pair<std::int64_t, int>> expected;
    std::int64_t now = 0;
    int next = 0;
    const std::uint64_t spread = std::uint64_t{1} << (random() % 40);
    while (next < 2000 || !queue.empty()) {
      if (next < 2000 && (queue.empty() || random() % 2 == 0)) {
        const auto time = now + static_cast<std::int64_t>(random() % spread);
        queue.push(Picoseconds{time}, next);
        expected.emplace(time, next++);
      } else {
        now = count(queue.next_time());
        CHECK_EQUAL(now, expected.begin()->first);
        CHECK_EQUAL(queue.pop(), expected.begin()->second);
        expected.erase(expected.begin());
      }
    }
    CHECK(expected.empty());
  }
}

void the_past_is_refused() {
  EventQueue<int> queue;
  queue.push(Picoseconds{5}, 1);
  queue.pop();
  CHECK_THROWS(std::logic_error, queue.push(Picoseconds{4}, 2));
  queue.push(Picoseconds{5}, 3);
  CHECK(queue.more_now());
}

void a_shift_moves_what_it_picks() {
  EventQueue<int> queue;
  queue.push(Picoseconds{1}, 1);
  queue.pop();
  for (int event = 2; event < 6; ++event) queue.push(Picoseconds{event * 10}, event);
  queue.shift(Picoseconds{25}, [](int event) { return event != 5; });
  CHECK_EQUAL(count(queue.next_time()), 45);
  CHECK_EQUAL(queue.pop(), 2);
  CHECK_EQUAL(count(queue.next_time()), 50);
  CHECK_EQUAL(queue.pop(), 5);
  CHECK_EQUAL(queue.size(), 2U);
}

struct Numbers {
  int first, count;
  bool join(const Numbers& next) {
    if (next.count != 1 || next.first != first + count) return false;
    ++count;
    return true;
  }
};

/// 1, 2 and 3 at one time are one event, 2 at another time none of them; 4, pushed once they were taken, comes after.
void events_that_join_keep_their_order() {
  EventQueue<Numbers> queue;
  queue.push(Picoseconds{10}, {1, 1});
  queue.push(Picoseconds{20}, {2, 1});
  queue.push(Picoseconds{10}, {2, 1});
  queue.push(Picoseconds{10}, {3, 1});
  CHECK_EQUAL(queue.size(), 2U);
  CHECK_EQUAL(count(queue.next_time()), 10);
  CHECK_EQUAL(queue.pop().count, 3);
  queue.push(Picoseconds{10}, {4, 1});
  CHECK(queue.more_now());
  CHECK_EQUAL(queue.pop().first, 4);
  CHECK_EQUAL(count(queue.next_time()), 20);
  CHECK_EQUAL(queue.pop().first, 2);
  CHECK(queue.empty());
}

}  // namespace

int main() {
  nothing_waits_in_an_empty_queue();
  order_is_time_then_sequence();
  the_past_is_refused();
  a_shift_moves_what_it_picks();
  events_that_join_keep_their_order();
  return busbw::testing::failures == 0 ? 0 : 1;
}
