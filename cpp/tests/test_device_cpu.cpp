// The same kernels with threads as ranks: what ThreadSanitizer sees. Inputs are rewritten and outputs read in those threads, every round.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "busbw/device/kernels/all_gather.hpp"
#include "busbw/device/kernels/all_reduce.hpp"
#include "busbw/device/kernels/packets.hpp"
#include "busbw/device/kernels/ring.hpp"
#include "check.hpp"

using namespace busbw::device;

namespace {

struct Machine {
  Machine(std::uint32_t ranks_, std::uint32_t threads_, std::size_t count_) : ranks(ranks_), threads(threads_), count(count_) {
    layout = {ranks, 1, (count * 8 / 64 + 2) * 64};  // packets take twice the bytes
    const std::size_t lines = (layout.bytes() + (ranks + 1) * (count * 4 + 64)) / 64 + 1;
    heaps.assign(ranks, std::vector<Line>(lines));
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Comm comm{rank, ranks, layout, {}, 0};
      Window data{};
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        comm.control.base[peer] = heaps[peer][0].bytes;
        data.base[peer] = heaps[peer][0].bytes + layout.bytes();
      }
      comms.push_back(comm);
      windows.push_back(data);
      barriers.push_back(std::make_unique<BlockBarrier>(threads));
    }
  }
  float* input(std::uint32_t rank) { return reinterpret_cast<float*>(windows[rank].base[rank]); }
  std::size_t output_offset() const { return (count * 4 + 63) / 64 * 64; }
  float* output(std::uint32_t rank) { return reinterpret_cast<float*>(windows[rank].base[rank] + output_offset()); }

  struct alignas(64) Line {
    std::byte bytes[64]{};
  };
  std::uint32_t ranks, threads;
  std::size_t count;
  Layout layout{};
  std::vector<std::vector<Line>> heaps;
  std::vector<Comm> comms;
  std::vector<Window> windows;
  std::vector<std::unique_ptr<BlockBarrier>> barriers;
};

float value(std::uint32_t round, std::uint32_t rank, std::size_t i) { return static_cast<float>(round * 100 + rank * 10 + i % 7); }

template <class Kernel>
void check(const char* name, Kernel kernel, bool gathers) {
  for (const std::uint32_t ranks : {2u, 3u, 5u})
    for (const std::uint32_t threads : {1u, 2u})
      for (const std::size_t count : {std::size_t{1}, std::size_t{6}, std::size_t{64}, std::size_t{1000}}) {
        Machine m(ranks, threads, count);
        std::atomic<int> wrong{0};
        std::vector<std::thread> all;
        for (std::uint32_t rank = 0; rank < ranks; ++rank)
          for (std::uint32_t thread = 0; thread < threads; ++thread)
            all.emplace_back([&, rank, thread] {
              const Block block{0, 1, thread, threads, m.barriers[rank].get()};
              for (std::uint32_t round = 0; round < 8; ++round) {
                for (std::size_t i = thread; i < count; i += threads) m.input(rank)[i] = value(round, rank, i);
                block.sync();
                if (kernel(m, m.comms[rank], block) != kArrived) ++wrong;
                block.sync();
                for (std::uint32_t part = 0; part < (gathers ? ranks : 1); ++part)
                  for (std::size_t i = thread; i < count; i += threads) {
                    float expected = gathers ? value(round, part, i) : value(round, 0, i);
                    for (std::uint32_t r = 1; !gathers && r < ranks; ++r) expected += value(round, r, i);
                    if (m.output(rank)[part * count + i] != expected) ++wrong;
                  }
                block.sync();
              }
            });
        for (std::thread& one : all) one.join();
        if (wrong != 0) std::cerr << name << " ranks " << ranks << " threads " << threads << " count " << count << '\n';
        CHECK_EQUAL(wrong.load(), 0);
      }
}

}  // namespace

int main() {
  check("one_shot", [](Machine& m, const Comm& comm, const Block& block) {
    return all_reduce_one_shot(comm, block, static_cast<const float*>(m.input(comm.rank)), m.output(comm.rank), m.count, Sum{});
  }, false);
  check("ring", [](Machine& m, const Comm& comm, const Block& block) {
    const Window& window = m.windows[comm.rank];
    return all_reduce_ring(comm, block, SymPtr<const float>(window, 0), SymPtr<float>(window, m.output_offset()), m.count, Sum{});
  }, false);
  for (const Form form : {Form::ll, Form::ll128})
    check("packets", [form](Machine& m, const Comm& comm, const Block& block) {
      return all_reduce_packets(comm, block, form, static_cast<const float*>(m.input(comm.rank)), m.output(comm.rank), m.count, Sum{});
    }, false);
  check("two_shot", [](Machine& m, const Comm& comm, const Block& block) {
    const Window& window = m.windows[comm.rank];
    return all_reduce_two_shot(comm, block, SymPtr<const float>(window, 0), SymPtr<float>(window, m.output_offset()), m.count, Sum{});
  }, false);
  check("all_gather", [](Machine& m, const Comm& comm, const Block& block) {
    return all_gather_direct(comm, block, static_cast<const float*>(m.input(comm.rank)), SymPtr<float>(m.windows[comm.rank], m.output_offset()),
                             m.count);
  }, true);
  return busbw::testing::failures != 0;
}
