// Plans in the simulated weak memory for Python: all ranks in one world, one seed a call.
#define BUSBW_TARGET_SIM
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "busbw/device/kernels/interpreter.hpp"
#include "busbw/device/plan_proxy.hpp"
#include "columns.hpp"
#include "element_types.hpp"
#include "linked_program.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace busbw::device;
using namespace busbw::bindings;

namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class SimulatedPlan {
 public:
  SimulatedPlan() = default;
  SimulatedPlan(const SimulatedPlan&) = delete;
  SimulatedPlan& operator=(const SimulatedPlan&) = delete;

  void add_rank(const BytesIn& rows, const BytesIn& blocks, const BytesIn& walks, const BytesIn& ways, const BytesIn& groups, const Numbers& block_runs,
                const Numbers& spaces, const Numbers& numbers, const Numbers& semaphores) {
    ranks_.push_back(std::make_unique<LinkedProgram>(rows, blocks, walks, ways, groups, block_runs, spaces, numbers));
    semaphores_.push_back(busbw::bindings::values<std::uint64_t>(semaphores));
  }

  /// heap: places of wire, input, output, scratch, packets in each rank's heap, and bytes of one. inputs: of each rank, one launch behind the other.
  /// outputs: are filled the same way. Races in words, where a deadlock stood, primitives, and whether a wait was given up.
  std::tuple<std::vector<std::string>, std::string, std::uint64_t, bool> run(const Numbers& heap, const std::vector<BytesIn>& inputs, const std::vector<Bytes>& outputs,
                                                                             const std::string& dtype, const std::string& op, std::uint64_t seed,
                                                                             std::uint32_t threads, std::uint32_t launches) {
    if (heap.shape(0) != ranks_.size() * 5 + 1 || inputs.size() != ranks_.size() || outputs.size() != ranks_.size() || threads == 0 || launches == 0)
      throw std::invalid_argument("heap, inputs, outputs, threads or launches do not fit the ranks");
    const std::uint64_t* at = heap.data();
    std::uint32_t blocks = 1;
    bool ports = false;
    for (const auto& rank : ranks_) blocks = std::max(blocks, rank->program().blocks), ports = ports || has_ports(rank->program());
    blocks += ports;  // the last block's first thread is the proxy
    const auto ranks = static_cast<std::uint32_t>(ranks_.size());
    sim::SeededChooser chooser(seed);
    sim::World world({.ranks = ranks, .blocks = blocks, .threads = threads, .heap_bytes = at[5 * ranks_.size()], .most_live_blocks = 0, .granule_bytes = 1, .launch_is_fence = true}, chooser);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Program& program = ranks_[rank]->program();
      program.wait_ns = 0;
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        program.wire.base[peer] = world.heap(peer) + at[5 * peer];
        for (std::uint32_t space = 0; space < kSpaces; ++space) ranks_[rank]->set_base(peer, space, world.heap(peer) + at[5 * peer + space + 1]);
      }
      for (std::size_t i = 0; i < semaphores_[rank].size(); ++i) program.word(rank, program.semaphores_at + i * 2 * Program::kLine) = semaphores_[rank][i];
    }
    std::vector<BlockBarrier> barriers(static_cast<std::size_t>(ranks) * blocks, BlockBarrier(threads));
    const ErasedArithmetic arithmetic = arithmetic_of(dtype);
    const ReduceOp reduction = reduction_named(op);
    bool gave_up = false;
    nb::gil_scoped_release released;
    world.run([&](const sim::Place& place) {
      const std::uint32_t rank = place.rank;
      const Program& program = ranks_[rank]->program();
      const bool proxy = ports && place.block + 1 == blocks;
      const auto pick = [](std::uint32_t under_way) { return sim::world->choose(under_way + 1); };
      const Block block{place.block, blocks, place.thread, threads, &barriers[rank * blocks + place.block]};
      const std::size_t me = static_cast<std::size_t>(place.block) * threads + place.thread, all = static_cast<std::size_t>(blocks) * threads;
      const std::size_t given = inputs[rank].shape(0) / launches, got = outputs[rank].shape(0) / launches;
      auto* const input = reinterpret_cast<std::uint8_t*>(world.heap(rank) + at[5 * rank + 1]);
      const auto* const output = reinterpret_cast<const std::uint8_t*>(world.heap(rank) + at[5 * rank + 2]);
      for (std::uint32_t launch = 0; launch < launches; ++launch) {
        for (std::size_t i = me; i < given; i += all) weak_store(input + i, inputs[rank].data()[launch * given + i]);
        world.next_launch();
        if (proxy && place.thread == 0) serve_ports(program, pick);
        if (place.block < program.blocks && run_plan(program, block, arithmetic, reduction) != kArrived) gave_up = true;
        world.next_launch();
        for (std::size_t i = me; i < got; i += all) outputs[rank].data()[launch * got + i] = weak_load(output + i);
        world.next_launch();
      }
    });
    return {world.result().races, world.result().deadlock, world.result().primitives, gave_up};
  }

 private:
  std::vector<std::unique_ptr<LinkedProgram>> ranks_;
  std::vector<std::vector<std::uint64_t>> semaphores_;
};

}  // namespace

NB_MODULE(_plan_simulation, m) {
  m.doc() = "The plan interpreter in the simulated weak memory.";
  nb::class_<SimulatedPlan>(m, "SimulatedPlan", "All ranks of a linked plan in one simulated world.")
      .def(nb::init<>())
      .def("add_rank", &SimulatedPlan::add_rank, "rows"_a, "blocks"_a, "walks"_a, "ways"_a, "groups"_a, "block_runs"_a, "spaces"_a, "numbers"_a,
           "semaphores"_a)
      .def("run", &SimulatedPlan::run, "heap"_a, "inputs"_a, "outputs"_a, "dtype"_a, "op"_a, "seed"_a, "threads"_a, "launches"_a,
           "Races, where threads stood if none could go on, primitives, and whether a wait was given up.");
}
