// Kernels on the simulated weak memory: right on every seed; and every planted fault of memory order is found.
#define BUSBW_TARGET_SIM
#include <cstring>
#include <numeric>
#include <string>

#include "busbw/device/kernels/all_gather.hpp"
#include "busbw/device/kernels/all_reduce.hpp"
#include "busbw/device/kernels/attached.hpp"
#include "busbw/device/kernels/chained.hpp"
#include "busbw/device/kernels/piped.hpp"
#include "busbw/device/kernels/direct.hpp"
#include "busbw/device/kernels/multimem.hpp"
#include "busbw/device/kernels/packets.hpp"
#include "busbw/device/kernels/ring.hpp"
#include "busbw/device/kernels/staged.hpp"
#include "check.hpp"

using namespace busbw::device;

namespace {

struct Machine;
using Kernel = WaitResult (*)(Machine&, const Comm&, const Block&);

float value(std::uint32_t call, std::uint32_t rank, std::size_t i) { return static_cast<float>(call * 100 + rank * 10 + i % 7); }

/// A collective: how many parts of `count` elements a rank gives and gets, and what it must get.
struct Collective {
  const char* name;
  Kernel kernel;
  bool gives_all, gets_all;  ///< a part for each rank, or one
  float (*expected)(std::uint32_t call, std::uint32_t ranks, std::uint32_t rank, std::uint32_t part, std::size_t count, std::size_t i);
};

struct Job {
  sim::Options options;
  Collective collective;
  std::size_t count;
  std::size_t slot_bytes;
  std::size_t shift = 0;  ///< elements by which the input is off a vector's alignment
  std::uint32_t calls = 3;
  std::vector<Collective> turns = {};  ///< what is called in turn, if it is not always the same: all with room for `collective`

  const Collective& in_call(std::uint32_t call) const { return turns.empty() ? collective : turns[call % turns.size()]; }
  std::size_t given() const { return count * (collective.gives_all ? options.ranks : 1); }
  std::size_t got() const { return count * (collective.gets_all ? options.ranks : 1); }
};

/// A rank's heap: control window, then input, then output.
struct Machine {
  Machine(const Job& wanted, sim::Chooser& chooser) : job(wanted), world(with_heap(job), chooser) {
    layout = layout_of(job);
    pipe_layout = pipes_of(job);
    for (std::uint32_t rank = 0; rank < job.options.ranks; ++rank) {
      Comm comm{rank, job.options.ranks, layout, {}, 0};
      Window data{};
      for (std::uint32_t peer = 0; peer < job.options.ranks; ++peer) {
        comm.control.base[peer] = world.heap(peer);
        data.base[peer] = world.heap(peer) + pipe_layout.end();
      }
      comms.push_back(comm);
      windows.push_back(data);
    }
    chained.assign(static_cast<std::size_t>(job.options.ranks) * job.options.threads, 0);
    barriers.assign(static_cast<std::size_t>(job.options.ranks) * job.options.blocks, BlockBarrier(job.options.threads));
  }
  static Layout layout_of(const Job& job) { return {job.options.ranks, job.options.blocks, job.slot_bytes}; }
  static PipeLayout pipes_of(const Job& job) { return {job.options.ranks, job.options.blocks, (layout_of(job).bytes() + 127) / 128 * 128, 128}; }
  static sim::Options with_heap(const Job& job) {
    sim::Options options = job.options;
    options.heap_bytes = (pipes_of(job).end() + (job.shift + job.given() + job.got() + job.options.ranks * 8) * 4 + 191) / 64 * 64;
    return options;
  }
  Block block(const sim::Place& place) {
    return {place.block, job.options.blocks, place.thread, job.options.threads,
            &barriers[place.rank * job.options.blocks + place.block]};
  }
  float* input(std::uint32_t rank) { return reinterpret_cast<float*>(windows[rank].base[rank]) + job.shift; }
  std::size_t output_offset() const { return ((job.shift + job.given()) * 4 + 15) / 16 * 16; }
  float* output(std::uint32_t rank) { return reinterpret_cast<float*>(windows[rank].base[rank] + output_offset()); }

  std::size_t scratch_offset() const { return (output_offset() + got_bytes() + 15) / 16 * 16; }
  std::size_t got_bytes() const { return job.got() * 4; }

  Job job;
  sim::World world;
  Layout layout;
  PipeLayout pipe_layout;
  std::vector<Comm> comms;
  std::vector<Window> windows;
  std::vector<BlockBarrier> barriers;
  std::vector<std::uint64_t> chained;  ///< rounds that all_reduce_chained has taken, by rank and thread of the first block
};

/// Rewrites the inputs in each call, runs the kernel, compares, and rewrites the outputs, in the same threads: what a schedule tore shows up in the values or as a
/// race. Both belong to the caller as soon as the call has returned, whatever the other ranks are still doing.
std::string run(const Job& job, sim::Chooser& chooser, std::uint64_t* primitives = nullptr) {
  Machine m(job, chooser);
  std::string wrong;
  m.world.run([&](const sim::Place& place) {
    const Block block = m.block(place);
    const Comm& comm = m.comms[place.rank];
    const std::size_t threads = static_cast<std::size_t>(block.blocks) * block.threads;
    const std::size_t me = static_cast<std::size_t>(block.block) * block.threads + block.thread;
    for (std::uint32_t call = 0; call < job.calls; ++call) {
      const Collective& now = job.in_call(call);
      for (std::size_t i = me; i < job.given(); i += threads) weak_store(m.input(place.rank) + i, value(call, place.rank, i));
      m.world.next_launch();
      if (now.kernel(m, comm, block) != kArrived) wrong = "gave up";
      m.world.next_launch();
      for (std::size_t i = me; i < job.count * (now.gets_all ? comm.ranks : 1); i += threads) {
        const float expected =
            now.expected(call, comm.ranks, comm.rank, static_cast<std::uint32_t>(i / job.count), job.count, i % job.count);
        const float got = weak_load(m.output(place.rank) + i);
        if (got != expected) wrong = "call " + std::to_string(call) + ": " + std::to_string(got) + " for " + std::to_string(expected);
        weak_store(m.output(place.rank) + i, -1.0f);
      }
      m.world.next_launch();
    }
  });
  if (primitives) *primitives += m.world.result().primitives;
  if (!m.world.result().deadlock.empty()) return "deadlock: " + m.world.result().deadlock;
  if (!m.world.result().races.empty()) return m.world.result().races[0];
  return wrong;
}

const float* in(Machine& m, const Comm& comm) { return m.input(comm.rank); }
float* out(Machine& m, const Comm& comm) { return m.output(comm.rank); }
SymPtr<const float> shared_in(Machine& m, const Comm& comm) { return SymPtr<const float>(m.windows[comm.rank], m.job.shift * 4); }
SymPtr<float> shared_out(Machine& m, const Comm& comm) { return SymPtr<float>(m.windows[comm.rank], m.output_offset()); }

Pipes pipes(Machine& m, const Comm& comm) { return {comm, m.pipe_layout}; }

/// Peers' memory where it lies: addresses are those of the one process that all fibers live in. All threads of a block move it.
struct Reached {
  bool get(const Block& block, std::byte* to, std::uint32_t, std::uint64_t address, std::size_t bytes) const {
    copy(block, reinterpret_cast<float*>(to), reinterpret_cast<const float*>(address), bytes / 4);
    return true;
  }
  bool put(const Block& block, std::uint32_t, std::uint64_t address, const std::byte* from, std::size_t bytes) const {
    copy(block, reinterpret_cast<float*>(address), reinterpret_cast<const float*>(from), bytes / 4);
    return true;
  }
};
/// The block as the only one of its rank: these kernels have one.
Block alone(Block block) {
  block.blocks = 1;
  return block;
}
constexpr std::size_t kStrip = 8;  // elements
float* scratch(Machine& m, const Comm& comm) { return reinterpret_cast<float*>(m.windows[comm.rank].base[comm.rank] + m.scratch_offset()); }

float sum_of(std::uint32_t call, std::uint32_t ranks, std::size_t i) {
  float sum = value(call, 0, i);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) sum += value(call, rank, i);
  return sum;
}
float all_reduced(std::uint32_t call, std::uint32_t ranks, std::uint32_t, std::uint32_t, std::size_t, std::size_t i) {
  return sum_of(call, ranks, i);
}
float reduced_and_scattered(std::uint32_t call, std::uint32_t ranks, std::uint32_t rank, std::uint32_t, std::size_t count, std::size_t i) {
  return sum_of(call, ranks, rank * count + i);
}
float all_gathered(std::uint32_t call, std::uint32_t, std::uint32_t, std::uint32_t part, std::size_t, std::size_t i) { return value(call, part, i); }
float exchanged(std::uint32_t call, std::uint32_t, std::uint32_t rank, std::uint32_t part, std::size_t count, std::size_t i) {
  return value(call, part, rank * count + i);
}
float of_the_last(std::uint32_t call, std::uint32_t ranks, std::uint32_t, std::uint32_t, std::size_t, std::size_t i) {
  return value(call, ranks - 1, i);
}

const Collective kCollectives[] = {
    {"all_reduce_one_shot", [](Machine& m, const Comm& c, const Block& b) { return all_reduce_one_shot(c, b, in(m, c), out(m, c), m.job.count, Sum{}); },
     false, false, all_reduced},
    {"all_reduce_two_shot",
     [](Machine& m, const Comm& c, const Block& b) {
       return all_reduce_two_shot(c, b, shared_in(m, c), shared_out(m, c), m.job.count, Sum{});
     },
     false, false, all_reduced},
    {"all_reduce_staged", [](Machine& m, const Comm& c, const Block& b) { return all_reduce_staged(c, b, in(m, c), out(m, c), m.job.count, Sum{}); },
     false, false, all_reduced},
    {"reduce_scatter_staged",
     [](Machine& m, const Comm& c, const Block& b) { return reduce_scatter_staged(c, b, in(m, c), out(m, c), m.job.count, Sum{}); }, true, false,
     reduced_and_scattered},
    {"all_gather_direct", [](Machine& m, const Comm& c, const Block& b) { return all_gather_direct(c, b, in(m, c), shared_out(m, c), m.job.count); },
     false, true, all_gathered},
    {"all_gather_staged", [](Machine& m, const Comm& c, const Block& b) { return all_gather_staged(c, b, in(m, c), out(m, c), m.job.count); }, false,
     true, all_gathered},
    {"all_to_all_staged", [](Machine& m, const Comm& c, const Block& b) { return all_to_all_staged(c, b, in(m, c), out(m, c), m.job.count); }, true,
     true, exchanged},
    {"all_reduce_piped", [](Machine& m, const Comm& c, const Block& b) { return all_reduce_piped(pipes(m, c), b, in(m, c), out(m, c), m.job.count, Sum{}, {64, false}); },
     false, false, all_reduced},
    {"all_reduce_piped_parts",
     [](Machine& m, const Comm& c, const Block& b) { return all_reduce_piped_parts(pipes(m, c), b, in(m, c), out(m, c), m.job.count, Sum{}, {32, false}); },
     false, false, all_reduced},
    {"reduce_scatter_piped",
     [](Machine& m, const Comm& c, const Block& b) { return reduce_scatter_piped(pipes(m, c), b, in(m, c), out(m, c), m.job.count, Sum{}, {64, false}); },
     true, false, reduced_and_scattered},
    {"all_gather_piped", [](Machine& m, const Comm& c, const Block& b) { return all_gather_piped(pipes(m, c), b, in(m, c), out(m, c), m.job.count, {64, false}); },
     false, true, all_gathered},
    {"all_to_all_piped", [](Machine& m, const Comm& c, const Block& b) { return all_to_all_piped(pipes(m, c), b, in(m, c), out(m, c), m.job.count, {64, false}); },
     true, true, exchanged},
    {"broadcast_piped",
     [](Machine& m, const Comm& c, const Block& b) { return broadcast_piped(pipes(m, c), b, in(m, c), out(m, c), m.job.count, c.ranks - 1, {16, false}); },
     false, false, of_the_last},
    {"reduce_piped",
     [](Machine& m, const Comm& c, const Block& b) {
       const WaitResult stop = reduce_piped(pipes(m, c), b, in(m, c), out(m, c), m.job.count, Sum{}, 1, {32, false});
       if (stop != kArrived) return stop;
       b.sync();
       return broadcast_piped(pipes(m, c), b, static_cast<const float*>(out(m, c)), out(m, c), m.job.count, 1, {32, false});
     },
     false, false, all_reduced},
    {"exchange_piped",
     [](Machine& m, const Comm& c, const Block& b) {
       if (b.block) return kArrived;
       Run<const float> sent[4];
       Run<float> got[4];
       for (std::uint32_t peer = 0; peer < c.ranks; ++peer) {
         sent[peer] = {in(m, c) + peer * m.job.count, m.job.count};
         got[peer] = {out(m, c) + peer * m.job.count, m.job.count};
       }
       return exchange_piped(pipes(m, c), alone(b), sent, got, {32, false});
     },
     true, true, exchanged},
    {"all_reduce_attached",
     [](Machine& m, const Comm& c, const Block& b) {
       return b.block ? kArrived : all_reduce_attached(pipes(m, c), alone(b), Reached{}, in(m, c), out(m, c), m.job.count, Sum{}, scratch(m, c), kStrip);
     },
     false, false, all_reduced},
    {"all_reduce_chained",
     [](Machine& m, const Comm& c, const Block& b) {
       if (b.block) return kArrived;
       std::uint64_t& taken = m.chained[c.rank * b.threads + b.thread];
       const std::uint64_t round = taken;
       taken += chained_rounds(c.ranks, 32, m.job.count * 4);
       return all_reduce_chained(pipes(m, c), alone(b), in(m, c), out(m, c), m.job.count, Sum{}, 32, round);
     },
     false, false, all_reduced},
    {"reduce_scatter_attached",
     [](Machine& m, const Comm& c, const Block& b) {
       return b.block ? kArrived : reduce_scatter_attached(pipes(m, c), alone(b), Reached{}, in(m, c), out(m, c), m.job.count, Sum{}, scratch(m, c), kStrip);
     },
     true, false, reduced_and_scattered},
    {"all_gather_attached",
     [](Machine& m, const Comm& c, const Block& b) {
       return b.block ? kArrived : all_gather_attached(pipes(m, c), alone(b), Reached{}, in(m, c), out(m, c), m.job.count, Turn{32, c.rank % 2 == 1});
     },
     false, true, all_gathered},
    {"all_to_all_attached",
     [](Machine& m, const Comm& c, const Block& b) {
       return b.block ? kArrived : all_to_all_attached(pipes(m, c), alone(b), Reached{}, in(m, c), out(m, c), m.job.count, Turn{32, m.job.count % 2 == 1});
     },
     true, true, exchanged},
    {"broadcast_attached",
     [](Machine& m, const Comm& c, const Block& b) {
       return b.block ? kArrived : broadcast_attached(pipes(m, c), alone(b), Reached{}, in(m, c), out(m, c), m.job.count, c.ranks - 1);
     },
     false, false, of_the_last},
    {"broadcast_staged",
     [](Machine& m, const Comm& c, const Block& b) { return broadcast_staged(c, b, in(m, c), out(m, c), m.job.count, c.ranks - 1); }, false, false,
     of_the_last},
    {"reduce_scatter_direct",
     [](Machine& m, const Comm& c, const Block& b) { return reduce_scatter_direct(c, b, shared_in(m, c), out(m, c), m.job.count, Sum{}); }, true, false,
     reduced_and_scattered},
    {"all_to_all_direct", [](Machine& m, const Comm& c, const Block& b) { return all_to_all_direct(c, b, in(m, c), shared_out(m, c), m.job.count); }, true,
     true, exchanged},
    {"broadcast_direct",
     [](Machine& m, const Comm& c, const Block& b) { return broadcast_direct(c, b, in(m, c), shared_out(m, c), m.job.count, c.ranks - 1); }, false, false,
     of_the_last},
    {"all_reduce_ring", [](Machine& m, const Comm& c, const Block& b) { return all_reduce_ring(c, b, shared_in(m, c), shared_out(m, c), m.job.count, Sum{}); },
     false, false, all_reduced},
    {"all_reduce_ll one_shot",
     [](Machine& m, const Comm& c, const Block& b) { return all_reduce_packets(c, b, Form::ll, in(m, c), out(m, c), m.job.count, Sum{}); }, false, false,
     all_reduced},
    {"all_reduce_ll128 one_shot",
     [](Machine& m, const Comm& c, const Block& b) { return all_reduce_packets(c, b, Form::ll128, in(m, c), out(m, c), m.job.count, Sum{}); }, false, false,
     all_reduced},
    {"all_reduce_packets in place one_shot",
     [](Machine& m, const Comm& c, const Block& b) {
       const Share part = share_of(m.job.count, b.blocks, b.block, Vector<float>::kElements);
       copy(b, out(m, c) + part.first, in(m, c) + part.first, part.size());
       b.sync();
       return all_reduce_packets(c, b, Form::ll, static_cast<const float*>(out(m, c)), out(m, c), m.job.count, Sum{});
     },
     false, false, all_reduced},
    {"all_gather_multimem whole vectors",
     [](Machine& m, const Comm& c, const Block& b) { return all_gather_multimem(c, b, in(m, c), MulticastPtr<float>(shared_out(m, c), c.ranks, nullptr), m.job.count); },
     false, true, all_gathered},
    {"all_reduce_multimem whole vectors",
     [](Machine& m, const Comm& c, const Block& b) {
       const Share part = share_of(m.job.count, b.blocks, b.block, Vector<float>::kElements);
       copy(b, out(m, c) + part.first, in(m, c) + part.first, part.size());
       m.world.next_launch();  // the kernel works in place, and shares the vector out otherwise
       return all_reduce_multimem(c, b, MulticastPtr<float>(shared_out(m, c), c.ranks, nullptr), m.job.count, Sum{});
     },
     false, false, all_reduced},
};

void kernels_are_right_on_every_seed(std::uint32_t seeds) {
  std::uint64_t primitives = 0, schedules = 0;
  for (const Collective& collective : kCollectives) {
    const bool one_piece = std::string(collective.name).ends_with("one_shot");
    const bool whole_vectors = std::string(collective.name).ends_with("whole vectors");
    for (std::uint32_t ranks = 2; ranks <= 4; ++ranks)
      for (std::uint32_t seed = 0; seed < seeds; ++seed) {
        sim::SeededChooser chooser(seed);
        const std::size_t count = whole_vectors ? 4 * (1 + seed % 13) : 1 + seed % 53;
        const std::size_t slot = one_piece ? (count * 8 / 64 + 2) * 64 : 64;  // packets take twice the bytes
        const sim::Options options{.ranks = ranks, .blocks = 1 + seed % 2, .threads = 1 + seed % 3};
        const std::string wrong = run({options, collective, count, slot, !whole_vectors && seed % 5 == 4}, chooser, &primitives);
        if (!wrong.empty()) std::cerr << collective.name << " ranks " << ranks << " seed " << seed << ": " << wrong << '\n';
        CHECK(wrong.empty());
        if (!wrong.empty()) return;
        ++schedules;
      }
  }
  std::cerr << primitives << " primitives, " << schedules << " schedules\n";
}

/// One communicator, whose slots, counts and pipes each kernel takes as the one before left them. Packets have slots of their own.
void kernels_take_turns(std::uint32_t seeds) {
  std::vector<Collective> all;
  for (const Collective& one : kCollectives)
    if (!std::string(one.name).ends_with("one_shot") || one.kernel == kCollectives[0].kernel) all.push_back(one);
  for (std::uint32_t seed = 0; seed < seeds; ++seed)
    for (std::uint32_t ranks = 2; ranks <= 4; ++ranks) {
      sim::SeededChooser chooser(seed), lots(seed * 3 + ranks);
      const std::size_t count = 4 * (1 + seed % 11);
      Job job{{.ranks = ranks, .blocks = 1 + seed % 2, .threads = 1 + seed / 2 % 3}, {"turns", nullptr, true, true, nullptr}, count, (count * 4 / 64 + 1) * 64, 0, 6, {}};
      std::string names;
      for (std::uint32_t call = 0; call < job.calls; ++call) {
        job.turns.push_back(all[lots.choose(static_cast<std::uint32_t>(all.size()))]);
        names += std::string(call ? ", " : "") + job.turns.back().name;
      }
      const std::string wrong = run(job, chooser);
      if (!wrong.empty()) std::cerr << names << " ranks " << ranks << " seed " << seed << ": " << wrong << '\n';
      CHECK(wrong.empty());
      if (!wrong.empty()) return;
    }
}

/// LL128 leaves words of data where LL looks for flags: all of them 3, which is the flag of the third call. On a communicator that both forms share the third
/// call takes them for packets if it looks before its peer has stored; where each form has its own it never does.
void forms_of_packets_need_slots_apart(std::uint32_t seeds) {
  std::uint32_t wrong[2] = {};
  for (const bool apart : {false, true})
    for (std::uint32_t seed = 0; seed < seeds; ++seed) {
      sim::SeededChooser chooser(seed);
      constexpr std::uint32_t kCount = 28;
      const Layout layout{2, 1, 512};
      sim::World world({.ranks = 2, .blocks = 1, .threads = 1, .heap_bytes = 2 * layout.bytes()}, chooser);
      Comm comms[2][2];  // by rank and form
      for (std::uint32_t rank = 0; rank < 2; ++rank)
        for (std::uint32_t form = 0; form < 2; ++form) {
          comms[rank][form] = {rank, 2, layout, {}, 0};
          for (std::uint32_t peer = 0; peer < 2; ++peer) comms[rank][form].control.base[peer] = world.heap(peer) + (apart ? form * layout.bytes() : 0);
        }
      BlockBarrier barriers[2] = {BlockBarrier(1), BlockBarrier(1)};
      std::uint32_t given[2][kCount], got[2][kCount];
      bool failed = false;
      world.run([&](const sim::Place& place) {
        const Block block{0, 1, 0, 1, &barriers[place.rank]};
        for (std::uint32_t call = 0; call < (apart ? 6u : 3u); ++call) {
          const bool lines = call % 3 < 2;
          for (std::uint32_t i = 0; i < kCount; ++i) given[place.rank][i] = lines ? 3 : 100 + call;
          const WaitResult stop = all_reduce_packets(comms[place.rank][lines], block, lines ? Form::ll128 : Form::ll, given[place.rank], got[place.rank], kCount, Sum{});
          for (std::uint32_t i = 0; i < kCount; ++i) failed = failed || stop != kArrived || got[place.rank][i] != 2 * (lines ? 3 : 100 + call);
        }
      });
      wrong[apart] += failed || !world.result().clean();
    }
  CHECK(wrong[0] > 0);
  CHECK_EQUAL(wrong[1], 0u);
}

/// Rank 1 stays away: rank 0's wait ends at its deadline, its other threads are sent away, and the host reads who waited for what.
void a_wait_that_is_given_up_says_who_waited_for_whom() {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    sim::SeededChooser chooser(seed);
    Machine m({{.ranks = 2, .blocks = 1, .threads = 2}, kCollectives[0], 8, 64}, chooser);
    for (Comm& comm : m.comms) comm.wait_ns = 200;
    m.world.run([&](const sim::Place& place) {
      Report& report = m.comms[0].report();
      if (place.rank == 0) {
        CHECK(kCollectives[0].kernel(m, m.comms[0], m.block(place)) != kArrived);
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

/// A rank's first block stays away, its second comes when a peer's first has given up: that peer's second block hears that it may go on and that it must stop at about
/// the same time. Its threads take one of the two together; if some left and others went on, these would wait in the block for ever.
void threads_of_a_block_leave_together(std::uint32_t seeds) {
  for (const Collective& collective : kCollectives) {
    if (collective.kernel == kCollectives[std::size(kCollectives) - 1].kernel) continue;  // has launches in itself, to which all blocks must come
    for (std::uint32_t seed = 0; seed < seeds; ++seed) {
      sim::SeededChooser chooser(seed);
      Machine m({{.ranks = 2, .blocks = 2, .threads = 2 + seed % 2}, collective, 24, 192}, chooser);
      for (Comm& comm : m.comms) comm.wait_ns = 200;
      std::uint32_t answers[4][2] = {};
      m.world.run([&](const sim::Place& place) {
        if (place.rank == 1) {
          if (place.block == 0) return;
          std::uint32_t& state = m.comms[0].report().state;
          for (std::uint32_t turn = 0; place.thread == 0 && turn < 400 && SystemAtomic<std::uint32_t>(state).load(kRelaxed) == 0; ++turn) spin_pause(turn);
          m.world.block_barrier();
        }
        ++answers[place.rank * 2 + place.block][collective.kernel(m, m.comms[place.rank], m.block(place)) == kArrived];
      });
      for (const auto& block : answers) CHECK(block[0] == 0 || block[1] == 0);  // all of a block say the same
      if (!m.world.result().clean())
        std::cerr << collective.name << " given up, seed " << seed << ": " << (m.world.result().races.empty() ? m.world.result().deadlock : m.world.result().races[0]) << '\n';
      CHECK(m.world.result().clean());
      if (!m.world.result().clean()) return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  a_wait_that_is_given_up_says_who_waited_for_whom();
  const std::uint32_t seeds = argc > 1 ? static_cast<std::uint32_t>(std::stoul(argv[1])) : 100;
  threads_of_a_block_leave_together((seeds + 9) / 10);  // a wait to its deadline takes as long as many calls
  kernels_are_right_on_every_seed(seeds);
  kernels_take_turns(seeds);
  forms_of_packets_need_slots_apart((seeds + 9) / 10);
  return busbw::testing::failures != 0;
}
