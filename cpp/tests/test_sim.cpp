// What the simulated memory allows and forbids: litmus tests, each run through all schedules, or through enough seeds.
#define BUSBW_TARGET_SIM
#include <set>
#include <string>
#include <utility>

#include "busbw/device/target.hpp"
#include "check.hpp"

using namespace busbw::device;

namespace {

struct Words {
  std::uint64_t x, y;
  std::uint64_t data;
};

sim::Options two_ranks() { return {.ranks = 2, .blocks = 1, .threads = 1, .heap_bytes = 256}; }
Words& words(sim::World& world) { return *reinterpret_cast<Words*>(world.heap(0)); }

/// All outcomes of two threads, one on each rank, over every schedule with at most `deviations` choices against the calm one.
template <class First, class Second>
std::set<std::pair<std::uint64_t, std::uint64_t>> outcomes(First first, Second second, std::uint32_t deviations = 6) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  sim::Explorer explorer(deviations);
  do {
    sim::World world(two_ranks(), explorer);
    std::uint64_t got[2] = {0, 0};
    world.run([&](const sim::Place& place) {
      if (place.rank == 0)
        got[0] = first(words(world));
      else
        got[1] = second(words(world));
    });
    CHECK(world.result().clean());
    seen.insert({got[0], got[1]});
  } while (explorer.next());
  return seen;
}

using Word = SystemAtomic<std::uint64_t>;

void both_may_miss_the_others_store() {
  // x = 1; r0 = y || y = 1; r1 = x. Store buffering: even 0, 0.
  const auto seen = outcomes(
      [](Words& w) {
        Word(w.x).store(1, kRelease);
        return Word(w.y).load(kAcquire);
      },
      [](Words& w) {
        Word(w.y).store(1, kRelease);
        return Word(w.x).load(kAcquire);
      });
  CHECK_EQUAL(seen.size(), 4u);
}

void an_acquire_that_saw_the_release_sees_what_came_before() {
  const auto passed = [](Order store, Order load) {
    return outcomes(
        [store](Words& w) {
          Word(w.x).store(1, kRelaxed);
          Word(w.y).store(1, store);
          return std::uint64_t{0};
        },
        [load](Words& w) {
          const std::uint64_t flag = Word(w.y).load(load);
          return flag * 10 + Word(w.x).load(kRelaxed);
        });
  };
  CHECK(!passed(kRelease, kAcquire).contains({0, 10}));
  CHECK(passed(kRelaxed, kAcquire).contains({0, 10}));
  CHECK(passed(kRelease, kRelaxed).contains({0, 10}));
}

void a_word_never_goes_back() {
  const auto seen = outcomes(
      [](Words& w) {
        Word(w.x).store(1, kRelaxed);
        Word(w.x).store(2, kRelaxed);
        return std::uint64_t{0};
      },
      [](Words& w) {
        const std::uint64_t first = Word(w.x).load(kRelaxed);
        return first * 10 + Word(w.x).load(kRelaxed);
      });
  for (const auto& [_, two] : seen) CHECK(two / 10 <= two % 10);
  CHECK_EQUAL(seen.size(), 6u);  // 0 0, 0 1, 0 2, 1 1, 1 2, 2 2
}

void additions_are_not_lost_and_carry_a_release_on() {
  const auto seen = outcomes(
      [](Words& w) {
        weak_store(&w.data, std::uint64_t{7});
        return Word(w.x).fetch_add(1, kRelease);
      },
      [](Words& w) { return Word(w.x).fetch_add(1, kRelaxed); });
  CHECK_EQUAL(seen.size(), 2u);  // one of them was first
  CHECK(!seen.contains({0, 0}));
}

/// Whether rank 1 reads data that rank 0 stored before it set the flag, with these orders, without a race on any of 200 seeds.
bool message_passing_is_clean(Order store, Order load) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    sim::SeededChooser chooser(seed);
    sim::World world(two_ranks(), chooser);
    const bool clean = world.run([&](const sim::Place& place) {
      Words& w = words(world);
      if (place.rank == 0) {
        weak_store(&w.data, std::uint64_t{7});
        Word(w.x).store(1, store);
      } else {
        for (std::uint32_t turn = 0; Word(w.x).load(load) == 0; ++turn) spin_pause(turn);
        CHECK_EQUAL(weak_load(&w.data), 7u);
      }
    });
    if (!clean) return false;
  }
  return true;
}

void a_race_is_found_whatever_the_schedule() {
  CHECK(message_passing_is_clean(kRelease, kAcquire));
  CHECK(!message_passing_is_clean(kRelaxed, kAcquire));
  CHECK(!message_passing_is_clean(kRelease, kRelaxed));
}

void a_store_after_another_threads_read_is_a_race() {
  sim::SeededChooser chooser(1);
  sim::World world(two_ranks(), chooser);
  world.run([&](const sim::Place& place) {
    if (place.rank == 0)
      weak_load(&words(world).data);
    else
      weak_store(&words(world).data, std::uint64_t{1});
  });
  CHECK_EQUAL(world.result().races.size(), 2u);  // both granules of the 8 bytes
  CHECK(world.result().races[0].find("of rank 0's heap") != std::string::npos);
}

void a_wait_for_nobody_is_a_deadlock_with_a_name() {
  sim::SeededChooser chooser(1);
  sim::World world(two_ranks(), chooser);
  world.run([&](const sim::Place& place) {
    if (place.rank != 1) return;
    world.at("semaphore wait");
    for (std::uint32_t turn = 0; Word(words(world).x).load(kRelaxed) == 0; ++turn) spin_pause(turn);
  });
  CHECK_EQUAL(world.result().deadlock, "rank 1 block 0 thread 0 spins at semaphore wait; ");
}

void threads_of_a_block_are_ordered_by_its_barrier_only() {
  for (const bool with_barrier : {true, false}) {
    sim::SeededChooser chooser(3);
    sim::World world({.ranks = 1, .blocks = 1, .threads = 2, .heap_bytes = 256}, chooser);
    BlockBarrier barrier(2);
    const bool clean = world.run([&](const sim::Place& place) {
      if (place.thread == 0) weak_store(&words(world).data, std::uint64_t{5});
      if (with_barrier) barrier.sync();
      if (place.thread == 1) weak_load(&words(world).data);
    });
    CHECK_EQUAL(clean, with_barrier);
  }
}

void a_barrier_that_a_thread_never_reaches_is_a_deadlock() {
  sim::SeededChooser chooser(3);
  sim::World world({.ranks = 1, .blocks = 1, .threads = 2, .heap_bytes = 256}, chooser);
  BlockBarrier barrier(2);
  world.run([&](const sim::Place& place) {
    if (place.thread == 0) barrier.sync();
  });
  CHECK(world.result().deadlock.find("block barrier") != std::string::npos);
}

void blocks_that_wait_for_blocks_without_room_are_a_deadlock() {
  // Block 0 waits for block 1 of its rank, which gets a place only when block 0 ends.
  for (const std::uint32_t live : {2u, 1u}) {
    sim::SeededChooser chooser(5);
    sim::World world({.ranks = 1, .blocks = 2, .threads = 1, .heap_bytes = 256, .most_live_blocks = live}, chooser);
    world.run([&](const sim::Place& place) {
      if (place.block == 1) Word(words(world).x).store(1, kRelease);
      for (std::uint32_t turn = 0; place.block == 0 && Word(words(world).x).load(kAcquire) == 0; ++turn) spin_pause(turn);
    });
    CHECK_EQUAL(world.result().deadlock.empty(), live == 2);
  }
}

void the_same_seed_gives_the_same_run() {
  const auto told = [](std::uint64_t seed) {
    sim::SeededChooser chooser(seed);
    sim::World world(two_ranks(), chooser);
    std::string order;
    world.run([&](const sim::Place& place) {
      for (int i = 0; i < 4; ++i) {
        Word(words(world).x).fetch_add(1, kRelaxed);
        order += static_cast<char>('0' + place.rank);
      }
    });
    return order;
  };
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CHECK_EQUAL(told(seed), told(seed));
    orders.insert(told(seed));
  }
  CHECK(orders.size() > 10);
}

}  // namespace

int main() {
  both_may_miss_the_others_store();
  an_acquire_that_saw_the_release_sees_what_came_before();
  a_word_never_goes_back();
  additions_are_not_lost_and_carry_a_release_on();
  a_race_is_found_whatever_the_schedule();
  a_store_after_another_threads_read_is_a_race();
  a_wait_for_nobody_is_a_deadlock_with_a_name();
  threads_of_a_block_are_ordered_by_its_barrier_only();
  a_barrier_that_a_thread_never_reaches_is_a_deadlock();
  blocks_that_wait_for_blocks_without_room_are_a_deadlock();
  the_same_seed_gives_the_same_run();
  return busbw::testing::failures != 0;
}
