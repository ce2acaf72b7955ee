// Kernels on the simulated weak memory: right on every seed; and every planted fault of memory order is found.
#define BUSBW_TARGET_SIM
#include <cstring>
#include <numeric>
#include <string>

#include "busbw/device/kernels/all_gather.hpp"
#include "busbw/device/kernels/all_reduce.hpp"
#include "check.hpp"

using namespace busbw::device;

namespace {

struct Job {
  sim::Options options;
  std::size_t count;
  std::size_t shift = 0;  ///< elements by which the input is off a vector's alignment
  std::uint32_t calls = 3;
};

/// A rank's heap: control window, then input, then output.
struct Machine {
  Machine(const Job& given, sim::Chooser& chooser) : job(given), world(with_heap(job), chooser) {
    layout = layout_of(job);
    for (std::uint32_t rank = 0; rank < job.options.ranks; ++rank) {
      Comm comm{rank, job.options.ranks, layout, {}, 0};
      Window data{};
      for (std::uint32_t peer = 0; peer < job.options.ranks; ++peer) {
        comm.control.base[peer] = world.heap(peer);
        data.base[peer] = world.heap(peer) + layout.bytes();
      }
      comms.push_back(comm);
      windows.push_back(data);
    }
    barriers.assign(static_cast<std::size_t>(job.options.ranks) * job.options.blocks, BlockBarrier(job.options.threads));
  }
  static Layout layout_of(const Job& job) { return {job.options.ranks, job.options.blocks, (job.count * 4 / 64 + 1) * 64}; }
  static sim::Options with_heap(const Job& job) {
    sim::Options options = job.options;
    options.heap_bytes = (layout_of(job).bytes() + (job.shift + job.count) * 4 + job.count * 4 * options.ranks + 127) / 64 * 64;
    return options;
  }
  Block block(const sim::Place& place) {
    return {place.block, job.options.blocks, place.thread, job.options.threads,
            &barriers[place.rank * job.options.blocks + place.block]};
  }
  float* input(std::uint32_t rank) { return reinterpret_cast<float*>(windows[rank].base[rank]) + job.shift; }
  std::size_t output_offset() const { return ((job.shift + job.count) * 4 + 15) / 16 * 16; }
  float* output(std::uint32_t rank) { return reinterpret_cast<float*>(windows[rank].base[rank] + output_offset()); }

  Job job;
  sim::World world;
  Layout layout;
  std::vector<Comm> comms;
  std::vector<Window> windows;
  std::vector<BlockBarrier> barriers;
};

float value(std::uint32_t call, std::uint32_t rank, std::size_t i) { return static_cast<float>(call * 100 + rank * 10 + i % 7); }

using Kernel = WaitResult (*)(Machine&, const Comm&, const Block&);

/// Rewrites the inputs in each call, runs the kernel, and compares in the same threads: what a schedule tore shows up in the values or as a race.
std::string run(const Job& job, sim::Chooser& chooser, Kernel kernel, bool gather, std::uint64_t* primitives = nullptr) {
  Machine m(job, chooser);
  std::string wrong;
  m.world.run([&](const sim::Place& place) {
    const Block block = m.block(place);
    const Comm& comm = m.comms[place.rank];
    for (std::uint32_t call = 0; call < job.calls; ++call) {
      const Share mine = share_of(job.count, block.blocks, block.block, 4);
      for (std::size_t i = mine.first + block.thread; i < mine.last; i += block.threads)
        weak_store(m.input(place.rank) + i, value(call, place.rank, i));
      m.world.next_launch();
      if (kernel(m, comm, block) != kArrived) wrong = "gave up";
      m.world.next_launch();
      for (std::uint32_t rank = 0; rank < (gather ? comm.ranks : 1); ++rank)
        for (std::size_t i = mine.first + block.thread; i < mine.last; i += block.threads) {
          float expected = gather ? value(call, rank, i) : 0;
          for (std::uint32_t r = 0; !gather && r < comm.ranks; ++r) expected = r ? expected + value(call, r, i) : value(call, 0, i);
          const float got = weak_load(m.output(place.rank) + rank * job.count + i);
          if (got != expected) wrong = "call " + std::to_string(call) + ": " + std::to_string(got) + " for " + std::to_string(expected);
        }
      m.world.next_launch();
    }
  });
  if (primitives) *primitives += m.world.result().primitives;
  if (!m.world.result().deadlock.empty()) return "deadlock: " + m.world.result().deadlock;
  if (!m.world.result().races.empty()) return m.world.result().races[0];
  return wrong;
}

WaitResult one_shot(Machine& m, const Comm& comm, const Block& block) {
  return all_reduce_one_shot(comm, block, static_cast<const float*>(m.input(comm.rank)), m.output(comm.rank), m.job.count, Sum{});
}
WaitResult two_shot(Machine& m, const Comm& comm, const Block& block) {
  return all_reduce_two_shot(comm, block, SymPtr<const float>(m.windows[comm.rank], m.job.shift * 4), SymPtr<float>(m.windows[comm.rank], m.output_offset()),
                             m.job.count, Sum{});
}
WaitResult gather(Machine& m, const Comm& comm, const Block& block) {
  return all_gather_direct(comm, block, static_cast<const float*>(m.input(comm.rank)), SymPtr<float>(m.windows[comm.rank], m.output_offset()),
                           m.job.count);
}

void kernels_are_right_on_every_seed(std::uint32_t seeds) {
  struct {
    const char* name;
    Kernel kernel;
    bool gather;
  } kernels[] = {{"one_shot", one_shot, false}, {"two_shot", two_shot, false}, {"all_gather", gather, true}};
  std::uint64_t primitives = 0;
  for (const auto& [name, kernel, gathers] : kernels)
    for (std::uint32_t ranks = 2; ranks <= 4; ++ranks)
      for (std::uint32_t seed = 0; seed < seeds; ++seed) {
        sim::SeededChooser chooser(seed);
        const std::string wrong = run({{ranks, 1 + seed % 2, 1 + seed % 3}, 1 + seed % 23, seed % 5 == 4}, chooser, kernel, gathers, &primitives);
        if (!wrong.empty()) std::cerr << name << " ranks " << ranks << " seed " << seed << ": " << wrong << '\n';
        CHECK(wrong.empty());
        if (!wrong.empty()) return;
      }
  std::cerr << primitives << " primitives\n";
}

/// Rank 1 stays away: rank 0's wait ends at its deadline, its other threads are sent away, and the host reads who waited for what.
void a_wait_that_is_given_up_says_who_waited_for_whom() {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    sim::SeededChooser chooser(seed);
    Machine m({{.ranks = 2, .blocks = 1, .threads = 2}, 8}, chooser);
    for (Comm& comm : m.comms) comm.wait_ns = 200;
    m.world.run([&](const sim::Place& place) {
      Report& report = m.comms[0].report();
      if (place.rank == 0) {
        CHECK(one_shot(m, m.comms[0], m.block(place)) != kArrived);
      } else if (place.thread == 0) {  // as the host would
        for (std::uint32_t turn = 0; SystemAtomic<std::uint32_t>(report.state).load(kAcquire) < Deadline::kComplete; ++turn) spin_pause(turn);
        CHECK_EQUAL(SystemAtomic<std::uint32_t>(report.peer).load(kRelaxed), 1u);
        CHECK_EQUAL(SystemAtomic<std::uint64_t>(report.expected).load(kRelaxed), 1u);
        CHECK_EQUAL(SystemAtomic<std::uint32_t>(report.primitive).load(kRelaxed), static_cast<std::uint32_t>(Primitive::semaphore_wait));
      }
    });
    CHECK(m.world.result().clean());
  }
}

}  // namespace

int main(int argc, char** argv) {
  a_wait_that_is_given_up_says_who_waited_for_whom();
  kernels_are_right_on_every_seed(argc > 1 ? static_cast<std::uint32_t>(std::stoul(argv[1])) : 100);
  return busbw::testing::failures != 0;
}
